# SPDX-License-Identifier: Apache-2.0
"""S3 options, under the names that Paimon, Hadoop, pypaimon and AWS use for them.

Invariant: an option we know under any of its names has one meaning; what is not given comes from the
`AWS_*` environment; a name that is almost one of ours is refused, as a misspelled key would otherwise show
up as a refused login. Other options belong to other parts of a catalog and are passed over.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from shoal.errors import BadRequest
from shoal.store.object import ObjectStore

# The names after their prefix, without case and punctuation: `fs.s3a.access.key` and `s3.access-key` are one.
_NAMES = {
    "endpoint": "endpoint",
    "endpointurl": "endpoint",
    "region": "region",
    "endpointregion": "region",
    "accesskey": "access_key_id",
    "accesskeyid": "access_key_id",
    "secretkey": "secret_access_key",
    "secretaccesskey": "secret_access_key",
    "accesskeysecret": "secret_access_key",
    "sessiontoken": "session_token",
    "securitytoken": "session_token",
    "pathstyleaccess": "path_style",
    "virtualhostedstyle": "virtual_hosted_style",
    "virtualhostedstylerequest": "virtual_hosted_style",
    "allowhttp": "allow_http",
    "connectionsslenabled": "ssl",
    "skipsignature": "skip_signature",
}
_PREFIX = re.compile(r"^(fs\.s3a|fs\.s3|s3a|s3)\.")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_RETRIES = 8


def s3_store(bucket: str, prefix: str, options: Mapping[str, str], *, retry_seconds: float = 60.0) -> ObjectStore:
    """The store below `s3://bucket/prefix`. Requests that fail on the way are repeated for `retry_seconds`."""
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    uri = f"s3://{bucket}/{prefix}".rstrip("/")
    config, allow_http = s3_config(bucket, options, os.environ)
    try:
        inner = S3Store(
            bucket,
            prefix=prefix or None,
            config=config,
            client_options={"allow_http": True} if allow_http else None,
            retry_config={
                "max_retries": _RETRIES if retry_seconds > 0 else 0,
                "retry_timeout": timedelta(seconds=retry_seconds),
            },
        )
    except (BaseError, ValueError) as err:
        raise BadRequest(f"cannot open {uri}: {err}") from err
    return ObjectStore(inner, uri)


def s3_config(bucket: str, options: Mapping[str, str], environ: Mapping[str, str]) -> tuple[dict[str, Any], bool]:
    """What obstore's S3 store is configured with, and whether plain HTTP is allowed."""
    known = _known(options)
    config = {k: v for k, v in known.items() if k in ("region", "access_key_id", "secret_access_key", "session_token")}
    secure = _flag(known, "ssl", default=True)
    named = known.get("endpoint")
    if named and "://" not in named:
        named = f"{'https' if secure else 'http'}://{named}"
    endpoint = (named or next((environ[name] for name in _ENDPOINTS if environ.get(name)), "")).rstrip("/")
    virtual = _flag(known, "virtual_hosted_style", default=not _flag(known, "path_style", default=True))
    if endpoint and virtual:
        scheme, _, host = endpoint.partition("://")
        if not host.startswith(f"{bucket}."):
            endpoint = f"{scheme}://{bucket}.{host}"
    if endpoint:
        config["endpoint"] = endpoint
        if environ.get("AWS_ENDPOINT_URL_S3"):
            config["aws_endpoint_url_s3"] = endpoint  # would otherwise win over ours
    if virtual:
        config["virtual_hosted_style_request"] = "true"
    if _flag(known, "skip_signature", default=False):
        config["skip_signature"] = "true"
    # Who writes http:// in the endpoint means it.
    return config, _flag(known, "allow_http", default=endpoint.startswith("http://"))


def _known(options: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in options.items():
        plain = _PREFIX.sub("", key.lower())
        squeezed = re.sub(r"[-._]", "", plain)
        name = _NAMES.get(squeezed)
        if name:
            found[name] = value
        elif plain != key.lower() and (meant := difflib.get_close_matches(squeezed, _NAMES, n=1, cutoff=0.88)):
            raise BadRequest(f"unknown option '{key}'", hint=f"did you mean 's3.{_NAMES[meant[0]].replace('_', '-')}'?")
    return found


def _flag(known: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = str(known.get(name, default)).lower()
    if value not in ("true", "false"):
        raise BadRequest(f"S3 option for {name} is '{value}'", hint="it is true or false")
    return value == "true"
