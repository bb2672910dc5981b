//! Runs rustls's state machine. After a TLS 1.3 handshake, the record layer of this crate replaces
//! rustls.
//!
//! Invariants:
//! - Each call passes all unconsumed ciphertext to rustls again, because rustls stores positions in
//!   that ciphertext between calls.
//! - More ciphertext is added one record at a time. So rustls never sees bytes after the end of a
//!   TLS 1.3 handshake. If these bytes contained a key update, rustls would delay the reply until
//!   rustls sends its next record.

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, UnbufferedStatus, WriteTraffic,
};
use rustls::{CommonState, ProtocolVersion};

use super::buffers::IncomingBuffer;
use super::records::{KeySecrets, RecordLayer};
use crate::config::ClientConfig;
use crate::error::Error;

const CLOSE_BYTES_MAX: usize = 1024;

pub(super) enum Engine {
    Server(Box<UnbufferedServerConnection>),
    Client(Box<UnbufferedClientConnection>),
    /// The record layer of this crate, used after the handshake of TLS 1.3.
    RecordLayer(Box<RecordLayer>),
    /// The handshake is over, but the record layer could not be created.
    Stopped(rustls::Error),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnOutcome {
    /// Number of plaintext bytes that were written to the caller's memory. Further plaintext is
    /// kept in the session.
    Plain(usize),
    GoOn,
    Blocked,
}

pub(super) struct TurnResult {
    pub(super) step: Result<TurnOutcome, rustls::Error>,
    pub(super) control: Vec<u8>,
    pub(super) peer_closed: bool,
    pub(super) can_write: bool,
    /// Number of bytes that the requested [`WriteAction`] wrote. `None` if rustls has to handle
    /// another state first.
    pub(super) written: Option<usize>,
}

impl TurnResult {
    fn new() -> TurnResult {
        TurnResult {
            step: Ok(TurnOutcome::GoOn),
            control: Vec::new(),
            peer_closed: false,
            can_write: false,
            written: None,
        }
    }
}

pub(super) enum WriteAction<'a> {
    Nothing,
    /// Encrypt the plaintext in the first slice, and write the record to the second slice.
    Record(&'a [u8], &'a mut [u8]),
    Close,
}

/// Destination of plaintext: the caller's memory, and a buffer for the part that does not fit.
pub(super) struct PlaintextSink<'a> {
    into: &'a mut [u8],
    kept: &'a mut Vec<u8>,
    filled: usize,
}

impl PlaintextSink<'_> {
    /// Returns the caller's memory for the next plaintext. The slice is empty while earlier
    /// plaintext is kept, so that the order is preserved.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let room = if self.kept.is_empty() { &mut *self.into } else { &mut [] };
        room.get_mut(self.filled..).unwrap_or_default()
    }

    /// Copies `plain` to the caller's memory, and keeps the part that does not fit. Returns how
    /// many bytes were copied to the caller's memory.
    pub(super) fn take(&mut self, plain: &[u8]) -> usize {
        let room = self.room();
        let (now, later) = plain.split_at(plain.len().min(room.len()));
        room[..now.len()].copy_from_slice(now);
        self.filled += now.len();
        self.kept.extend_from_slice(later);
        now.len()
    }
}

impl Engine {
    pub(super) fn server(config: Arc<rustls::ServerConfig>) -> Result<Engine, Error> {
        let made = UnbufferedServerConnection::new(config);
        made.map(|one| Engine::Server(Box::new(one))).map_err(|error| Error::of_set_up(&error))
    }

    pub(super) fn client(
        config: &ClientConfig,
        name: ServerName<'static>,
    ) -> Result<Engine, Error> {
        let made = UnbufferedClientConnection::new(Arc::clone(&config.config), name);
        made.map(|one| Engine::Client(Box::new(one))).map_err(|error| Error::of_set_up(&error))
    }

    /// Advances the session by one state of its state machine. Plaintext is written to `plain.0`,
    /// the caller's memory, and the part that does not fit is appended to `plain.1`.
    pub(super) fn turn(
        &mut self,
        incoming: &mut IncomingBuffer,
        plain: (&mut [u8], &mut Vec<u8>),
        want: WriteAction<'_>,
    ) -> TurnResult {
        let mut sink = PlaintextSink { into: plain.0, kept: plain.1, filled: 0 };
        let (discard, mut turn) = match self {
            Engine::RecordLayer(records) => return records.turn(incoming, &mut sink, want),
            Engine::Stopped(error) => {
                return TurnResult { step: Err(error.clone()), ..TurnResult::new() };
            }
            Engine::Server(one) => {
                handle(one.process_tls_records(incoming.shown()), &mut sink, want)
            }
            Engine::Client(one) => {
                handle(one.process_tls_records(incoming.shown()), &mut sink, want)
            }
        };
        incoming.discard(discard);
        if turn.step == Ok(TurnOutcome::Blocked) && incoming.show_more() {
            turn.step = Ok(TurnOutcome::GoOn);
        }
        turn
    }

    /// Returns the connection state of rustls. Returns `None` if the record layer has replaced
    /// rustls, or the session was stopped.
    fn rustls(&self) -> Option<&CommonState> {
        match self {
            Engine::Server(one) => Some(one),
            Engine::Client(one) => Some(one),
            Engine::RecordLayer(_) | Engine::Stopped(_) => None,
        }
    }

    /// Replaces rustls by the record layer of this crate after a TLS 1.3 handshake, because rustls
    /// copies the plaintext of each record again, and allocates memory for it.
    pub(super) fn take_over(&mut self) {
        let version = self.rustls().and_then(CommonState::protocol_version);
        if version != Some(ProtocolVersion::TLSv1_3) {
            return;
        }
        let gone = Engine::Stopped(rustls::Error::HandshakeNotComplete);
        let records = match std::mem::replace(self, gone) {
            Engine::Server(one) => one
                .dangerous_into_kernel_connection()
                .and_then(|(keys, one)| RecordLayer::new(keys, KeySecrets::Server(one))),
            Engine::Client(one) => one
                .dangerous_into_kernel_connection()
                .and_then(|(keys, one)| RecordLayer::new(keys, KeySecrets::Client(one))),
            Engine::RecordLayer(_) | Engine::Stopped(_) => return,
        };
        *self = match records {
            Ok(records) => Engine::RecordLayer(Box::new(records)),
            Err(error) => Engine::Stopped(error),
        };
    }

    /// Returns the bytes that rustls wants to send to the peer after an error, such as an alert.
    /// Must be called only once: a second call would parse the invalid bytes again, and rustls
    /// allows only one alert.
    pub(super) fn last_words(&mut self, incoming: &mut IncomingBuffer) -> Vec<u8> {
        if matches!(self, Engine::RecordLayer(_)) {
            // Nothing is left to send. The record layer returned its alert in the call that
            // returned the error.
            return Vec::new();
        }
        self.turn(incoming, (&mut [], &mut Vec::new()), WriteAction::Nothing).control
    }

    pub(super) fn peer_certificate(&self) -> Option<&[u8]> {
        self.rustls()?.peer_certificates()?.first().map(AsRef::as_ref)
    }

    pub(super) fn describe(&self) -> String {
        let (version, suite) = match self {
            Engine::RecordLayer(records) => (Some(ProtocolVersion::TLSv1_3), Some(records.suite())),
            _ => {
                let rustls = self.rustls();
                let suite = rustls.and_then(CommonState::negotiated_cipher_suite);
                (rustls.and_then(CommonState::protocol_version), suite)
            }
        };
        match (version.and_then(|one| one.as_str()), suite.and_then(|one| one.suite().as_str())) {
            (Some(version), Some(suite)) => format!("{version} {suite}"),
            _ => "TLS".to_owned(),
        }
    }
}

fn handle<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    sink: &mut PlaintextSink<'_>,
    want: WriteAction<'_>,
) -> (usize, TurnResult) {
    let mut discard = status.discard;
    let mut turn = TurnResult::new();
    match status.state {
        Err(error) => turn.step = Err(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        sink.take(record.payload);
                    }
                    Err(error) => {
                        turn.step = Err(error);
                        return (discard, turn);
                    }
                }
            }
            turn.step = Ok(TurnOutcome::Plain(sink.filled));
        }
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            if let Err(error) = encode(&mut |room| data.encode(room), &mut turn.control) {
                turn.step = Err(rustls::Error::General(error.to_string()));
            }
        }
        Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
        Ok(ConnectionState::PeerClosed) => turn.peer_closed = true,
        Ok(ConnectionState::WriteTraffic(mut traffic)) => {
            turn.can_write = true;
            turn.step = Ok(TurnOutcome::Blocked);
            if let Err(error) = fulfil(&mut traffic, want, &mut turn) {
                turn.step = Err(rustls::Error::General(error.to_string()));
            }
        }
        Ok(ConnectionState::Closed) => {
            turn.peer_closed = true;
            turn.step = Ok(TurnOutcome::Blocked);
        }
        // Other states are early data (not enabled), or belong to later versions of rustls.
        Ok(_) => turn.step = Ok(TurnOutcome::Blocked),
    }
    (discard, turn)
}

fn fulfil<Data>(
    traffic: &mut WriteTraffic<'_, Data>,
    want: WriteAction<'_>,
    turn: &mut TurnResult,
) -> Result<(), EncryptError> {
    match want {
        WriteAction::Nothing => {}
        WriteAction::Record(plain, room) => turn.written = Some(traffic.encrypt(plain, room)?),
        WriteAction::Close => {
            let mut alert = vec![0; CLOSE_BYTES_MAX];
            let written = traffic.queue_close_notify(&mut alert)?;
            alert.truncate(written);
            turn.control = alert;
            turn.written = Some(written);
        }
    }
    Ok(())
}

/// Encodes a handshake message into a vector. A first call with an empty slice returns the size.
fn encode(
    write: &mut dyn FnMut(&mut [u8]) -> Result<usize, EncodeError>,
    into: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let needed = match write(&mut []) {
        Err(EncodeError::InsufficientSize(error)) => error.required_size,
        other => return other.map(|_| ()),
    };
    into.resize(needed, 0);
    let written = write(into)?;
    into.truncate(written);
    Ok(())
}
