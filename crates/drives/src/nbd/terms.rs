//! Checks whether the settings of an NBD drive fit the export, computes the number of connections,
//! and collects remarks for the user.
//!
//! The functions are pure and are called when a drive is opened or inspected.

use millrace_block::{Error, ErrorKind};
use millrace_nbd::TransmissionFlags;
use millrace_nbd::client::ClientSession;

use super::{NbdConfig, OnServerRestart};
use crate::common::units::size_text;

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
    let multi = session.flags.contains(TransmissionFlags::MULTI_CONN);
    if !multi && config.connections.is_none() && config.io_threads > 1 {
        notes.push(format!(
            "{}: one connection, which all threads share: the server does not say that a flush \
             covers several (multi-conn)",
            config.text
        ));
    }
    let block = u64::from(session.block_min.max(512));
    let rest = session.size_bytes % block;
    if rest > 0 {
        notes.push(format!(
            "{}: it has {} bytes; the last {rest}, which make no whole block of {block}, are not \
             served",
            config.text, session.size_bytes
        ));
    }
    if !session.flags.contains(TransmissionFlags::FLUSH) && !config.read_only {
        notes.push(format!(
            "{}: the server does not support flush, so acknowledged writes may not be durable",
            config.text
        ));
    }
    notes
}
