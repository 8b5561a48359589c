"""Signatures of manifests, by OpenSSH: Ed25519 keys that people have, in a format that others can check too.

``ssh-keygen -Y check-novalidate -n fedfrontier -s manifest.json.sig < manifest.json`` checks one by hand.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from harness.core.errors import UserError

NAMESPACE = "fedfrontier"  # a signature made for something else does not count
MOST_BYTES = 16_384  # of a signature
SECONDS = 60


def sign(path: Path, key: Path) -> Path:
    """Sign a file with a private key, or with the public key of one that an agent holds; return the signature.

    Raises
    ------
    UserError
        If the key is missing, is no Ed25519 key, or cannot be used.
    """
    if not key.exists():
        raise UserError(f"--key: no file {key}; ssh-keygen -t ed25519 makes a key")
    signature = path.with_name(f"{path.name}.sig")
    signature.unlink(missing_ok=True)
    done = _ssh_keygen(["-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(path)])
    if done.returncode != 0 or not signature.exists():
        raise UserError(f"--key: {key} does not sign: {' '.join(done.stderr.split())}")
    try:
        signer(path, signature)
    except UserError:
        signature.unlink()
        raise
    return signature


def signer(path: Path, signature: Path) -> str:
    """Return the fingerprint of the Ed25519 key that signed a file, as ``SHA256:...``.

    Raises
    ------
    UserError
        If the signature is not one of this file, or not by an Ed25519 key.
    """
    if signature.stat().st_size > MOST_BYTES:
        raise UserError(f"{signature.name} is not a signature: it has more than {MOST_BYTES:,} bytes")
    process = _ssh_keygen(
        ["-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(signature)], path.read_bytes()
    )
    if process.returncode != 0:
        raise UserError(f"{signature.name} is not a signature of {path.name}")
    match = re.search(r"with ED25519(?:-SK)? key (SHA256:[A-Za-z0-9+/]+)", process.stdout)
    if match is None:
        raise UserError(f"{signature.name} is not by an Ed25519 key; ssh-keygen -t ed25519 makes one")
    return match[1]


def _ssh_keygen(arguments: list[str], content: bytes | None = None) -> subprocess.CompletedProcess[str]:
    try:
        process = subprocess.run(
            ["ssh-keygen", *arguments], input=content, capture_output=True, timeout=SECONDS, check=False
        )
    except FileNotFoundError:
        raise UserError(
            "signatures need the program ssh-keygen of OpenSSH 8.2 or later (package openssh-client)"
        ) from None
    except subprocess.TimeoutExpired:
        raise UserError(f"ssh-keygen did not answer within {SECONDS} seconds") from None
    return subprocess.CompletedProcess(
        process.args,
        process.returncode,
        process.stdout.decode(errors="replace"),
        process.stderr.decode(errors="replace"),
    )
