"""Certificate of the owner's page, where it is served to other machines.

Browsers take no Ed25519 keys, which a coordinator's own certificate has: the page has another one, signed by itself,
unless the owner names one that browsers trust.
"""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.state_dir import write_atomically

CERTIFICATE, KEY = "page-cert.pem", "page-key.pem"
DAYS = 365
LEFT_DAYS = 30
"""Days before its end when a certificate is made anew."""


def page_certificate(folder: Path, names: tuple[str, ...], now: datetime.datetime) -> tuple[Path, Path, str]:
    """Return the files of the page's own certificate and key, which are made where there are none that serve, and the
    certificate's SHA-256 as browsers show it.

    Args:
        folder: the state folder.
        names: names and addresses under which the page is reached.
        now: the time, in UTC.

    Raises:
        UserError: they cannot be written.
    """
    certificate, key = folder / CERTIFICATE, folder / KEY
    found = _read(certificate) if key.exists() else None
    ends = now + datetime.timedelta(days=LEFT_DAYS)
    if found is None or found.not_valid_after_utc < ends or _names(found) != set(names):
        found = _make(certificate, key, names, now)
    return certificate, key, found.fingerprint(hashes.SHA256()).hex(":").upper()


def _read(path: Path) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return None


def _names(certificate: x509.Certificate) -> set[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(one.value) for one in found}


def _make(certificate: Path, key: Path, names: tuple[str, ...], now: datetime.datetime) -> x509.Certificate:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dtfm coordinator")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName([_general(one) for one in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_atomically(key, pem, private=True)
    write_atomically(certificate, made.public_bytes(Encoding.PEM))
    return made


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError:
        raise UserError(f"{name} is no host's name: give --announce a name or an address") from None
