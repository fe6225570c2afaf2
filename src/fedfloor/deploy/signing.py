"""Signatures of messages: each process signs with the key of its certificate, and checks the signatures of its peers.

A broker can only drop or delay messages: a signature covers the header, which holds sender, receiver, run, round,
session and number of the message, the message that it answers, and the SHA-256 of its arrays.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedfloor.base import regular
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import authority
from fedfloor.deploy.settings import Tls

PURPOSE = b"fedfloor message\0"  # separates signatures of messages from all others
CERTIFICATE = struct.Struct(">H")  # length of the certificate, before certificate and signature
REVOKED = "revoked.crl"
NOT_OURS = (struct.error, ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion)
SEALS = 1024  # certificates whose check is cached


class Signer:
    """A signer and verifier of messages, with a process's certificate and key and its park's authority.

    Args:
        tls: the TLS files of the process.
        name: name of the process and common name of its certificate.

    Raises:
        SettingError: a file is missing or unreadable.
    """

    def __init__(self, tls: Tls, name: str) -> None:
        self.name = name
        self._root = authority.certificate(tls.ca)
        self._revoked = tls.ca.with_name(REVOKED)
        self._key = authority.private_key(tls.key)
        own = authority.certificate(tls.cert)
        der = own.public_bytes(serialization.Encoding.DER)
        self._certificate = CERTIFICATE.pack(len(der)) + der

    def sign(self, header: bytes, purpose: bytes = PURPOSE) -> bytes:
        """Return the seal of a header: this process's certificate and signature (ECDSA with SHA-256)."""
        return self._certificate + self._key.sign(purpose + header, ec.ECDSA(hashes.SHA256()))

    def check(self, seal: bytes, header: bytes, sender: str, purpose: bytes = PURPOSE) -> None:
        """Check the seal of a header.

        Raises:
            RefusedError: the certificate is invalid, revoked or not the sender's, or the signature does not match.
        """
        name = authority.common_name(self.signatory(seal, header, purpose))
        if name != sender:
            raise RefusedError("signature", f"'{name}' signed it, not '{sender}'.")

    def signatory(self, seal: bytes, header: bytes, purpose: bytes = PURPOSE) -> x509.Certificate:
        """Return the certificate of the member of the park that made a seal.

        Raises:
            RefusedError: the certificate is invalid or revoked, or the signature does not match.
        """
        if not seal:
            raise RefusedError("signature", "it is not signed.")
        try:
            (length,) = CERTIFICATE.unpack_from(seal)
            cert = member(self._root, seal[CERTIFICATE.size : CERTIFICATE.size + length])
            key = cert.public_key()
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise ValueError("its type of key is not used in the park")
            key.verify(seal[CERTIFICATE.size + length :], purpose + header, ec.ECDSA(hashes.SHA256()))
        except NOT_OURS as error:
            raise RefusedError(
                "signature", f"its signer is not a member of the park ({type(error).__name__})."
            ) from error
        if cert.serial_number in self.revoked():
            raise RefusedError("signature", f"the certificate of '{authority.common_name(cert)}' was revoked.")
        if not cert.not_valid_before_utc <= authority.now() <= cert.not_valid_after_utc:
            raise RefusedError("signature", "its certificate is not valid now: check this machine's clock.")
        return cert

    def revoked(self) -> frozenset[int]:
        """Return the serials of revoked certificates, from the list beside a hub's certificates."""
        try:
            return serials(self._root, self._revoked, self._revoked.stat().st_mtime_ns)
        except (OSError, ValueError) as error:
            if self._revoked.exists():
                raise RefusedError("signature", f"{self._revoked} cannot be read ({error}): copy it again.") from error
            return frozenset()  # devices have no list


def signer_of(tls: Tls | None, name: str) -> Signer | None:
    """Return a process's signer; None without TLS files, so that nothing is signed or checked."""
    return None if tls is None else Signer(tls, name)


@lru_cache(maxsize=1)
def serials(root: x509.Certificate, path: Path, changed_ns: int) -> frozenset[int]:  # noqa: ARG001, of the memory
    """Return the serials in a certificate revocation list.

    Raises:
        OSError, ValueError: the list cannot be read, or was not signed by the authority.
    """
    listed = x509.load_pem_x509_crl(regular.read_bytes(path))
    key = root.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not listed.is_signature_valid(key):
        raise ValueError("it was not signed by the authority of this park")
    return frozenset(one.serial_number for one in listed)


@lru_cache(maxsize=SEALS)
def member(root: x509.Certificate, der: bytes) -> x509.Certificate:
    """Return a certificate after checking that the authority signed it.

    Args:
        root: the authority's certificate.
        der: the certificate in DER format.

    Raises:
        ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, InvalidVersion: it is malformed or not signed.
    """
    cert = x509.load_der_x509_certificate(der)
    cert.verify_directly_issued_by(root)
    return cert
