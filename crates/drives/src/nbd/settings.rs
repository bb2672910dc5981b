//! Settings of an NBD drive, parsed from a spec and checked against the export, and the driver's
//! row in the driver table.
//!
//! No file is read and no server is contacted. Errors name the key and its value.

use millrace_block::{Error, ErrorKind, QueueKind};
use millrace_nbd::TransmissionFlags;
use millrace_nbd::client::ClientSession;

use super::{CONNECTIONS_MAX, ClientFiles, NbdConfig, NbdTls, OnServerRestart, TlsIdentity};
use crate::common::units::size_text;
use crate::open::DriverRow;
use crate::spec::{Spec, SpecError};

pub(crate) const ROW: DriverRow = DriverRow {
    name: "nbd",
    keys: "uri connections depth reconnect write-through on-server-restart read-only \
           tls-ca tls-certificate tls-key tls-hostname",
    main_key: None,
    path_keys: "tls-ca tls-certificate tls-key",
    queues: QueueKind::OwnerOnly,
    settings: |spec| Ok(Box::new(config_of(spec)?)),
};

fn config_of(spec: &Spec) -> Result<NbdConfig, SpecError> {
    let Some(text) = spec.get("uri") else { return Err(spec.missing("uri")) };
    // The protocol crate parses only URIs without TLS, so `nbds:` is replaced by `nbd:` before the
    // call.
    let (plain, secure) = match text.strip_prefix("nbds") {
        Some(rest) => (format!("nbd{rest}"), true),
        None => (text.to_owned(), false),
    };
    let uri = plain.parse().map_err(|error| spec.invalid("uri", &format!("{error}")))?;
    let default = NbdConfig::new(uri, text.to_owned());
    let restart = [("go-on", OnServerRestart::GoOn), ("flush-error", OnServerRestart::FlushError)];
    Ok(NbdConfig {
        connections: spec.number("connections", CONNECTIONS_MAX)?,
        depth: spec.depth()?.unwrap_or(default.depth),
        reconnect: spec.time("reconnect")?.unwrap_or(default.reconnect),
        write_through: spec.switch("write-through")?.unwrap_or(default.write_through),
        on_server_restart: spec.choice("on-server-restart", &restart)?.unwrap_or_default(),
        read_only: spec.switch("read-only")?.unwrap_or(default.read_only),
        tls: if secure { Some(tls_of(spec)?) } else { no_tls(spec)? },
        ..default
    })
}

fn refuse_tls(spec: &Spec, key: &str) -> Result<(), SpecError> {
    millrace_tls::REFUSAL.map_or(Ok(()), |why| Err(spec.invalid(key, why)))
}

fn tls_of(spec: &Spec) -> Result<NbdTls, SpecError> {
    refuse_tls(spec, "uri")?;
    let Some(ca) = spec.get("tls-ca") else { return Err(spec.missing("tls-ca")) };
    let identity = match (spec.get("tls-certificate"), spec.get("tls-key")) {
        (Some(certificate), Some(key)) => {
            Some(TlsIdentity { certificate: certificate.into(), key: key.into() })
        }
        (None, None) => None,
        (Some(_), None) => return Err(spec.missing("tls-key")),
        (None, Some(_)) => return Err(spec.missing("tls-certificate")),
    };
    let files = ClientFiles { ca: ca.into(), identity };
    Ok(NbdTls { files, hostname: spec.get("tls-hostname").map(Into::into) })
}

/// Refuses settings such as `tls-ca` without a TLS URI: the data would be sent in plaintext.
fn no_tls(spec: &Spec) -> Result<Option<NbdTls>, SpecError> {
    match spec.first_of("tls-ca tls-certificate tls-key tls-hostname") {
        Some(key) => refuse_tls(spec, key)
            .and(Err(spec.invalid(key, "TLS needs a uri= that begins with nbds: or nbds+unix:"))),
        None => Ok(None),
    }
}

pub(crate) fn check(config: &NbdConfig, session: &ClientSession) -> Result<(), Error> {
    let ClientSession { size_bytes, block_min, block_max, flags, .. } = *session;
    let flushes = flags.contains(TransmissionFlags::FLUSH);
    let durable = flags.contains(TransmissionFlags::FUA);
    let needs_flush = config.on_server_restart == OnServerRestart::FlushError && !config.read_only;
    let wrong = if block_min > 65_536 {
        let least = size_text(block_min.into());
        &format!("the server's minimum request is {least}; at most 64 KiB is supported")
    } else if size_bytes < u64::from(block_min.max(512)) {
        &format!("the export has {size_bytes} bytes, less than one block; make it larger")
    } else if block_max < block_min.max(512) {
        &format!("the server accepts at most {block_max} bytes in a request, less than one block")
    } else if flags.contains(TransmissionFlags::READ_ONLY) && !config.read_only {
        "the export is read-only; serve the drive read-only: read-only=on, or `serve --read-only`"
    } else if config.write_through && flushes && !durable {
        "write-through=on, but the server does not support FUA; remove write-through"
    } else if needs_flush && !flushes {
        "on-server-restart=flush-error, but the server does not support flush; remove \
         on-server-restart"
    } else {
        return Ok(());
    };
    Err(config.error(ErrorKind::InvalidSetting, wrong))
}

/// Returns the drive's number of connections. Returns an error for several, unless the drive is
/// read-only or the server announces `multi-conn` (a flush on one covers the writes of all).
pub(crate) fn connections_of(config: &NbdConfig, session: &ClientSession) -> Result<u16, Error> {
    let safe = config.read_only || session.flags.contains(TransmissionFlags::MULTI_CONN);
    match config.connections {
        Some(count) if count > 1 && !safe => {
            let text = format!(
                "connections={count}, but the server does not say that a flush covers all of them \
                 (multi-conn); remove connections=, or set the server up for that"
            );
            Err(config.error(ErrorKind::InvalidSetting, &text))
        }
        Some(count) => Ok(count.max(1)),
        None if session.flags.contains(TransmissionFlags::MULTI_CONN) => {
            Ok(config.io_threads.max(1))
        }
        None => Ok(1),
    }
}

pub(crate) fn notes(config: &NbdConfig, session: &ClientSession) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |text: &str| notes.push(format!("{}: {text}", config.text));
    let multi = session.flags.contains(TransmissionFlags::MULTI_CONN);
    if !multi && config.connections.is_none() && config.io_threads > 1 {
        note(
            "one connection, which all threads share: the server does not say that a flush covers \
             several (multi-conn)",
        );
    }
    let (size_bytes, block) = (session.size_bytes, u64::from(session.block_min.max(512)));
    let rest = size_bytes % block;
    if rest > 0 {
        note(&format!(
            "it has {size_bytes} bytes; the last {rest}, which make no whole block of {block}, are \
             not served"
        ));
    }
    if !session.flags.contains(TransmissionFlags::FLUSH) && !config.read_only {
        note("the server does not support flush, so acknowledged writes may not be durable");
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Result<(), String> {
        let spec = text.parse::<Spec>().unwrap();
        config_of(&spec).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn tls_is_what_uri_says_or_refused_where_it_was_not_built_in() {
        let (plain, secure) = ("nbd:uri=nbd://h/x", "nbd:uri=nbds://h/x,tls-ca=/ca");
        assert_eq!(said(plain), Ok(()));
        let beside = said(&format!("{plain},tls-ca=/ca")).unwrap_err();
        match cfg!(feature = "tls") {
            true => {
                assert_eq!(said(secure), Ok(()));
                assert!(
                    beside.contains("TLS needs a uri= that begins with nbds: or nbds+unix:"),
                    "{beside}"
                );
            }
            false => {
                let refused = "this program was built without TLS; build it with the feature `tls`";
                assert!(said(secure).unwrap_err().contains(refused));
                assert!(beside.contains("tls-ca") && beside.contains(refused), "{beside}");
            }
        }
    }
}
