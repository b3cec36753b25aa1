"""Certificates that sign themselves, made by openssl."""

import subprocess
from pathlib import Path


def self_signed(folder: Path, days: int = 2, host: str = "127.0.0.1") -> tuple[Path, Path]:
    """A certificate and its key; with negative `days` it has expired."""
    certificate, key, request, extension = (folder / f"tls.{end}" for end in ("pem", "key", "csr", "ext"))
    extension.write_text(f"subjectAltName=IP:{host}\n")
    asked = [
        "req",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-keyout",
        key,
        "-out",
        request,
    ]
    signed = ["x509", "-req", "-in", request, "-signkey", key, "-days", days, "-extfile", extension]
    for words in (asked, [*signed, "-out", certificate]):
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
    return certificate, key
