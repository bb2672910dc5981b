//! NBD URIs: `nbd://host[:port]/name` and `nbd+unix:///name?socket=/path`.
//!
//! An unknown part of a URI is never ignored; the error names the part. Name and socket are
//! percent-decoded exactly once. Specification: `doc/uri.md`; generic syntax: RFC 3986.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::wire::{PORT_DEFAULT, STRING_BYTES_MAX};
use thiserror::Error;

/// Address of an NBD server.
#[allow(missing_docs)] // The names say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Tcp {
        host: String,
        port: u16,
    },
    /// Unix socket. A path that begins with a NUL is the name of an abstract socket.
    Unix {
        path: PathBuf,
    },
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix { path } => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Address of a server, and an export on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdUri {
    /// Address of the server.
    pub address: Address,
    /// Name of the export, empty for the default one.
    pub name: String,
}

/// Reason why a text is not a usable NBD URI.
#[allow(missing_docs)] // The messages describe the variants.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UriError {
    #[error("unknown scheme in {0:?}; write nbd://host/name or nbd+unix:///name?socket=/path")]
    Scheme(String),
    #[error("{0:?} demands TLS, which this client does not support; use nbd: or nbd+unix:")]
    Tls(String),
    #[error("the user name {0:?} has a meaning only with TLS; remove it")]
    User(String),
    #[error("{0:?} is not a valid host here; nbd: needs a host, nbd+unix: must have none")]
    Host(String),
    #[error("{0:?} is not a port from 1 to 65535")]
    Port(String),
    #[error("bad percent-encoding in {0:?}")]
    Percent(String),
    #[error("the export name {0:?} is longer than 4096 bytes or has a NUL")]
    Name(String),
    #[error("{0:?} has no socket; add ?socket=/path")]
    NoSocket(String),
    #[error("unknown or repeated parameter {0:?}; nbd+unix: takes one socket=, nbd: none")]
    Parameter(String),
    #[error("an NBD URI has no fragment, but {0:?} follows the #")]
    Fragment(String),
}

impl std::str::FromStr for NbdUri {
    type Err = UriError;

    fn from_str(uri: &str) -> Result<Self, UriError> {
        let whole = || uri.to_owned();
        let (scheme, rest) = uri.split_once("://").ok_or(UriError::Scheme(whole()))?;
        if let Some((_, fragment)) = rest.split_once('#') {
            return Err(UriError::Fragment(fragment.to_owned()));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let name = export_name(path)?;
        let address = match scheme.to_ascii_lowercase().as_str() {
            "nbd" => {
                if let Some(parameter) = parameters(query).next() {
                    return Err(unknown_parameter(parameter.0));
                }
                tcp(authority)?
            }
            "nbd+unix" if authority.is_empty() => {
                Address::Unix { path: socket(query)?.ok_or(UriError::NoSocket(whole()))? }
            }
            "nbd+unix" => return Err(UriError::Host(authority.to_owned())),
            "nbds" | "nbds+unix" => return Err(UriError::Tls(whole())),
            _ => return Err(UriError::Scheme(whole())),
        };
        Ok(NbdUri { address, name })
    }
}

fn export_name(path: &str) -> Result<String, UriError> {
    let name =
        String::from_utf8(percent_decode(path)?).map_err(|_| UriError::Percent(path.to_owned()))?;
    if name.len() > STRING_BYTES_MAX || name.contains('\0') {
        return Err(UriError::Name(name));
    }
    Ok(name)
}

fn tcp(authority: &str) -> Result<Address, UriError> {
    if let Some((user, _)) = authority.rsplit_once('@') {
        return Err(UriError::User(user.to_owned()));
    }
    let bad_host = || UriError::Host(authority.to_owned());
    let (host, rest) = match authority.strip_prefix('[') {
        Some(inside) => inside.split_once(']').ok_or_else(bad_host)?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = match rest {
        // RFC 3986 allows a colon with nothing after it.
        "" | ":" => PORT_DEFAULT,
        _ => port(rest.strip_prefix(':').ok_or_else(bad_host)?)?,
    };
    if host.is_empty() {
        return Err(bad_host());
    }
    let host = String::from_utf8(percent_decode(host)?).map_err(|_| bad_host())?;
    Ok(Address::Tcp { host, port })
}

fn port(digits: &str) -> Result<u16, UriError> {
    let decimal = digits.bytes().all(|byte| byte.is_ascii_digit());
    match digits.parse() {
        Ok(port) if decimal && port != 0 => Ok(port),
        _ => Err(UriError::Port(digits.to_owned())),
    }
}

fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let given = query.split('&').filter(|pair| !pair.is_empty());
    given.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn unknown_parameter(parameter: &str) -> UriError {
    UriError::Parameter(parameter.to_owned())
}

fn socket(query: &str) -> Result<Option<PathBuf>, UriError> {
    let mut path = None;
    for (key, value) in parameters(query) {
        if key != "socket" || path.is_some() {
            return Err(unknown_parameter(key));
        }
        path = Some(PathBuf::from(OsString::from_vec(percent_decode(value)?)));
    }
    Ok(path.filter(|path| !path.as_os_str().is_empty()))
}

fn percent_decode(text: &str) -> Result<Vec<u8>, UriError> {
    let bad = || UriError::Percent(text.to_owned());
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        let (high, low) = (digit().ok_or_else(bad)?, digit().ok_or_else(bad)?);
        out.push(u8::try_from(high * 16 + low).expect("two hexadecimal digits"));
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
