"""Credential that a TLS context shows to the other end of a connection: a certificate, and the key that proves it."""

import secrets
import ssl
import tempfile

from dtfm_protocol.identity.keys import Identity


def show_credential(context: ssl.SSLContext, identity: Identity, certificate: bytes) -> None:
    """Have `context` show `certificate`, DER, and prove its key, that of `identity`.

    OpenSSL takes both from a file only: the key in it is encrypted with a password that stays in memory, and the file
    is deleted at once.
    """
    password = secrets.token_hex(32).encode()
    with tempfile.NamedTemporaryFile(prefix="dtfm-", suffix=".pem") as file:
        file.write(identity.to_pem(password))
        file.write(ssl.DER_cert_to_PEM_cert(certificate).encode())
        file.flush()
        context.load_cert_chain(file.name, password=password)
