"""A peer's key: its file, its peer id, its signatures."""

import os
from pathlib import Path

import base58
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hivemind.p2p import PeerID
from hypothesis import given
from hypothesis import strategies as st

from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.keys import Identity, peer_id_of, public_key_of, short, verify

# RFC 8032, section 7.1, test 1
SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
SIGNATURE = bytes.fromhex(
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
)


def known() -> Identity:
    return Identity(Ed25519PrivateKey.from_private_bytes(SEED))


def test_signatures_are_those_of_rfc_8032() -> None:
    assert known().sign(b"") == SIGNATURE
    verify(known().peer_id, b"", SIGNATURE)


def test_the_key_and_the_peer_id_are_what_libp2p_makes_of_them() -> None:
    identity = known()
    assert identity.to_libp2p() == b"\x08\x01\x12\x40" + SEED + PUBLIC
    assert PeerID.from_base58(identity.peer_id).to_bytes() == b"\x00\x24\x08\x01\x12\x20" + PUBLIC
    assert identity.peer_id.startswith("12D3KooW")
    assert short(identity.peer_id) == identity.peer_id[-6:]


def test_the_key_leaves_in_pem_under_a_password_only() -> None:
    identity = known()
    pem = identity.to_pem(b"password")
    assert pem.startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    read = load_pem_private_key(pem, b"password")
    assert isinstance(read, Ed25519PrivateKey)
    assert Identity(read).peer_id == identity.peer_id
    with pytest.raises(ValueError, match="password"):
        load_pem_private_key(pem, b"another")


def test_a_peer_id_carries_its_public_key() -> None:
    identity = Identity.generate()
    assert peer_id_of(public_key_of(identity.peer_id)) == identity.peer_id
    assert Identity.generate().peer_id != identity.peer_id


def test_a_key_file_is_made_once_for_its_owner_only_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "key"
    before = os.umask(0)
    try:
        made = Identity.load_or_create(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    data = path.read_bytes()
    assert Identity.load_or_create(path).peer_id == made.peer_id
    assert path.read_bytes() == data == made.to_libp2p()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_may_open_is_not_used(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    Identity.load_or_create(path)
    path.chmod(mode)
    with pytest.raises(UserError, match="open to other users: chmod 600 it"):
        Identity.load_or_create(path)


@pytest.mark.parametrize(
    "data", [b"", b"x" * 68, b"\x08\x01\x12\x40" + bytes(63), b"\x08\x01\x12\x40" + bytes(65), b"\x08\x02\x12\x40" * 17]
)
def test_a_file_that_is_no_key_is_named_and_left_alone(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(UserError, match="is not an Ed25519 key") as caught:
        Identity.load_or_create(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == data


def test_a_key_that_cannot_be_written_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot use the key") as caught:
        Identity.load_or_create(tmp_path / "nowhere" / "key")
    assert "\n" not in str(caught.value)


@given(message=st.binary(max_size=200), at=st.integers(0, 63), bit=st.integers(0, 7), extra=st.binary(max_size=3))
def test_a_changed_signature_message_or_signer_is_refused(message: bytes, at: int, bit: int, extra: bytes) -> None:
    identity = known()
    signature = identity.sign(message)
    verify(identity.peer_id, message, signature)
    changed = bytearray(signature)
    changed[at] ^= 1 << bit
    with pytest.raises(Refused, match="signature is not"):
        verify(identity.peer_id, message, bytes(changed))
    with pytest.raises(Refused, match="signature is not"):
        verify(identity.peer_id, message + b"x", signature)
    with pytest.raises(Refused, match="signature is not"):
        verify(Identity(Ed25519PrivateKey.from_private_bytes(bytes(32))).peer_id, message, signature)
    with pytest.raises(Refused, match="signature is not"):
        verify(identity.peer_id, message, signature[:at] + extra[:1] * (len(extra) > 0))


@given(text=st.text(max_size=80))
def test_text_that_is_no_peer_id_is_refused_on_one_line(text: str) -> None:
    with pytest.raises(Refused, match="is not a peer id") as caught:
        public_key_of(text)
    assert "\n" not in str(caught.value)


@given(key=st.binary(min_size=32, max_size=32), signature=st.binary(max_size=80))
def test_any_32_bytes_in_a_peer_id_verify_nothing_that_was_not_signed(key: bytes, signature: bytes) -> None:
    peer = base58.b58encode(b"\x00\x24\x08\x01\x12\x20" + key).decode()
    with pytest.raises(Refused):
        verify(peer, b"message", signature)


@pytest.mark.parametrize(
    "data",
    [
        b"\x12\x20" + bytes(32),  # a SHA-256 multihash: an RSA key's
        b"\x00\x24\x08\x02\x12\x20" + bytes(32),  # another kind of key
        b"\x00\x24\x08\x01\x12\x20" + bytes(31),
        b"\x00\x24\x08\x01\x12\x20" + bytes(33),
    ],
)
def test_peer_ids_of_other_keys_are_refused(data: bytes) -> None:
    with pytest.raises(Refused, match="is not a peer id"):
        public_key_of(base58.b58encode(data).decode())
