//! Record layer of TLS 1.3 after the handshake (RFC 8446, sections 4.6, 5 and 6), which decrypts
//! records directly to the destination of the plaintext, and encrypts them from its source.
//!
//! Invariants: a record that cannot be decrypted ends the session, and no byte of it is returned. A
//! key encrypts no more records than its cipher allows. The number of consecutive records without
//! plaintext that a peer may send is limited.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce,
    UnboundKey,
};
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{
    AlertDescription, ConnectionTrafficSecrets, ContentType, Error, ExtractedSecrets,
    HandshakeType, InvalidMessage, PeerMisbehaved, SupportedCipherSuite,
};

use super::RECORD_BYTES;
use super::buffers::IncomingBuffer;
use super::engine::{PlaintextSink, TurnOutcome, TurnResult, WriteAction};

const HEADER_BYTES: usize = 5;
const TAG_BYTES: usize = 16;
const BODY_BYTES_MAX: usize = RECORD_BYTES + 256;
const MESSAGE_BYTES_MAX: usize = 0xffff;
const IDLE_RECORDS_MAX: u32 = 32;

type PeerError = (Error, Option<AlertDescription>);

pub(super) struct RecordLayer {
    secrets: KeySecrets,
    opening: DirectionKeys,
    sealing: DirectionKeys,
    /// Maximum number of records that one key may encrypt.
    sealed_max: u64,
    /// Beginning of a handshake message that continues in the next record.
    message: Vec<u8>,
    idle_records: u32,
    peer_closed: bool,
}

pub(super) enum KeySecrets {
    Server(KernelConnection<ServerConnectionData>),
    Client(KernelConnection<ClientConnectionData>),
}

struct DirectionKeys {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    records: u64,
}

impl DirectionKeys {
    fn new((records, secrets): (u64, ConnectionTrafficSecrets)) -> Result<DirectionKeys, Error> {
        let make = |algorithm: &'static Algorithm, key: &[u8], iv: &[u8]| {
            let key = UnboundKey::new(algorithm, key).ok()?;
            Some(DirectionKeys { key: LessSafeKey::new(key), iv: iv.try_into().ok()?, records })
        };
        use ConnectionTrafficSecrets as Of;
        match secrets {
            Of::Aes128Gcm { key, iv } => make(&AES_128_GCM, key.as_ref(), iv.as_ref()),
            Of::Aes256Gcm { key, iv } => make(&AES_256_GCM, key.as_ref(), iv.as_ref()),
            Of::Chacha20Poly1305 { key, iv } => make(&CHACHA20_POLY1305, key.as_ref(), iv.as_ref()),
            _ => None,
        }
        .ok_or_else(|| Error::General("the session's cipher is not supported".to_owned()))
    }

    /// Returns the nonce of the next record: its sequence number in the last eight bytes, XORed
    /// with the IV.
    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.records.to_be_bytes()) {
            *byte ^= number;
        }
        self.records += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

impl KeySecrets {
    fn suite(&self) -> SupportedCipherSuite {
        match self {
            KeySecrets::Server(one) => one.negotiated_cipher_suite(),
            KeySecrets::Client(one) => one.negotiated_cipher_suite(),
        }
    }

    fn next_opening(&mut self) -> Result<DirectionKeys, Error> {
        match self {
            KeySecrets::Server(one) => one.update_rx_secret(),
            KeySecrets::Client(one) => one.update_rx_secret(),
        }
        .and_then(DirectionKeys::new)
    }

    fn next_sealing(&mut self) -> Result<DirectionKeys, Error> {
        match self {
            KeySecrets::Server(one) => one.update_tx_secret(),
            KeySecrets::Client(one) => one.update_tx_secret(),
        }
        .and_then(DirectionKeys::new)
    }
}

impl RecordLayer {
    pub(super) fn new(keys: ExtractedSecrets, secrets: KeySecrets) -> Result<RecordLayer, Error> {
        let suite = secrets.suite();
        Ok(RecordLayer {
            opening: DirectionKeys::new(keys.rx)?,
            sealing: DirectionKeys::new(keys.tx)?,
            sealed_max: suite.tls13().map_or(0, |suite| suite.common.confidentiality_limit),
            secrets,
            message: Vec::new(),
            idle_records: 0,
            peer_closed: false,
        })
    }

    pub(super) fn suite(&self) -> SupportedCipherSuite {
        self.secrets.suite()
    }

    pub(super) fn turn(
        &mut self,
        incoming: &mut IncomingBuffer,
        sink: &mut PlaintextSink<'_>,
        want: WriteAction<'_>,
    ) -> TurnResult {
        let mut control = Vec::new();
        let mut written = None;
        let step = match want {
            WriteAction::Nothing => self.open(incoming, sink, &mut control).map_err(|wrong| {
                let (error, alert) = wrong;
                if let Some(alert) = alert {
                    // If encryption of the alert fails, that failure is ignored. The error that
                    // caused the alert is still reported.
                    let _ = self.say(ContentType::Alert, &[2, alert.into()], &mut control);
                }
                error
            }),
            WriteAction::Record(plain, room) => self.seal_plain(plain, room).map(|bytes| {
                written = Some(bytes);
                TurnOutcome::GoOn
            }),
            WriteAction::Close => {
                let alert = [1, AlertDescription::CloseNotify.into()];
                let said = self.say(ContentType::Alert, &alert, &mut control);
                written = Some(control.len());
                said.map(|()| TurnOutcome::GoOn)
            }
        };
        TurnResult { step, control, peer_closed: self.peer_closed, can_write: true, written }
    }

    fn open(
        &mut self,
        incoming: &mut IncomingBuffer,
        sink: &mut PlaintextSink<'_>,
        control: &mut Vec<u8>,
    ) -> Result<TurnOutcome, PeerError> {
        let bytes = incoming.bytes_mut();
        if self.peer_closed {
            let rest = bytes.len();
            incoming.discard(rest);
            return Ok(TurnOutcome::Blocked);
        }
        let Some(whole) = record_bytes(bytes)? else { return Ok(TurnOutcome::Blocked) };
        let (header, body) = bytes[..whole].split_at_mut(HEADER_BYTES);
        let Some(inner) = body.len().checked_sub(TAG_BYTES) else { return Err(undecryptable()) };
        let nonce = self.opening.next_nonce();
        let key = &self.opening.key;
        let step = if inner <= sink.room().len() {
            let (sealed, tag) = body.split_at(inner);
            let opened = &mut sink.room()[..inner];
            key.open_separate_gather(nonce, Aad::from(header), sealed, tag, opened)
                .map_err(|_| undecryptable())?;
            let (kind, len) = content(opened)?;
            self.heed(kind, &opened[..len], control)?.then_some(len)
        } else {
            let opened = key.open_in_place(nonce, Aad::from(header), body);
            let opened = opened.map_err(|_| undecryptable())?;
            let (kind, len) = content(opened)?;
            self.heed(kind, &opened[..len], control)?.then(|| sink.take(&opened[..len]))
        };
        incoming.discard(whole);
        Ok(step.map_or(TurnOutcome::GoOn, TurnOutcome::Plain))
    }

    fn heed(
        &mut self,
        kind: ContentType,
        content: &[u8],
        control: &mut Vec<u8>,
    ) -> Result<bool, PeerError> {
        self.idle_records += 1;
        match kind {
            ContentType::Alert | ContentType::Handshake if content.is_empty() => {
                let error = Error::InvalidMessage(InvalidMessage::InvalidEmptyPayload);
                return Err((error, Some(AlertDescription::UnexpectedMessage)));
            }
            ContentType::ApplicationData if !self.message.is_empty() => {
                return Err(misbehaved(PeerMisbehaved::MessageInterleavedWithHandshakeMessage));
            }
            ContentType::ApplicationData if !content.is_empty() => self.idle_records = 0,
            ContentType::ApplicationData => {}
            ContentType::Alert => self.heed_alert(content)?,
            ContentType::Handshake => self.heed_messages(content, control)?,
            other => return Err(inappropriate(other)),
        }
        match kind {
            _ if self.idle_records <= IDLE_RECORDS_MAX => Ok(kind == ContentType::ApplicationData),
            ContentType::Handshake => Err(misbehaved(PeerMisbehaved::TooManyKeyUpdateRequests)),
            ContentType::Alert => Err(misbehaved(PeerMisbehaved::TooManyWarningAlertsReceived)),
            _ => Err(misbehaved(PeerMisbehaved::TooManyEmptyFragments)),
        }
    }

    fn heed_alert(&mut self, content: &[u8]) -> Result<(), PeerError> {
        let &[level, alert] = content else {
            let error = Error::InvalidMessage(InvalidMessage::MissingData("alert"));
            return Err((error, Some(AlertDescription::DecodeError)));
        };
        let alert = AlertDescription::from(alert);
        let answer = match (level, alert) {
            (1 | 2, AlertDescription::CloseNotify) => {
                self.peer_closed = true;
                return Ok(());
            }
            // In TLS 1.3 all alerts but close_notify and user_canceled are errors.
            (1, AlertDescription::UserCanceled) => return Ok(()),
            (1, _) => Some(AlertDescription::DecodeError),
            (2, _) => None,
            _ => Some(AlertDescription::IllegalParameter),
        };
        Err((Error::AlertReceived(alert), answer))
    }

    fn heed_messages(&mut self, content: &[u8], control: &mut Vec<u8>) -> Result<(), PeerError> {
        self.message.extend_from_slice(content);
        let whole = std::mem::take(&mut self.message);
        let mut rest = whole.as_slice();
        while let [kind, a, b, c, behind @ ..] = rest {
            let bytes = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            if bytes > MESSAGE_BYTES_MAX {
                let error = Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge);
                return Err((error, Some(AlertDescription::DecodeError)));
            }
            let Some((body, behind)) = behind.split_at_checked(bytes) else { break };
            match (HandshakeType::from(*kind), &self.secrets) {
                (HandshakeType::KeyUpdate, _) => {
                    // Bytes that follow a key update in the same record would be encrypted with the
                    // old key, so they are an error.
                    if !behind.is_empty() {
                        return Err(misbehaved(PeerMisbehaved::KeyEpochWithPendingFragment));
                    }
                    self.change_keys(body, control)?;
                }
                (HandshakeType::NewSessionTicket, KeySecrets::Client(_)) => {}
                (got_type, _) => {
                    let expect_types = vec![HandshakeType::KeyUpdate];
                    let error = Error::InappropriateHandshakeMessage { expect_types, got_type };
                    return Err((error, Some(AlertDescription::UnexpectedMessage)));
                }
            }
            rest = behind;
        }
        self.message.extend_from_slice(rest);
        Ok(())
    }

    fn change_keys(&mut self, body: &[u8], control: &mut Vec<u8>) -> Result<(), PeerError> {
        let asked = match body {
            [0] => false,
            [1] => true,
            _ => {
                let error = Error::InvalidMessage(InvalidMessage::InvalidKeyUpdate);
                return Err((error, Some(AlertDescription::IllegalParameter)));
            }
        };
        self.opening = self.secrets.next_opening().map_err(internal)?;
        if asked {
            self.say(ContentType::Handshake, &KEY_UPDATE, control).map_err(internal)?;
            self.sealing = self.secrets.next_sealing().map_err(internal)?;
        }
        Ok(())
    }

    fn seal_plain(&mut self, plain: &[u8], room: &mut [u8]) -> Result<usize, Error> {
        let mut written = 0;
        if self.sealing.records >= self.sealed_max {
            written = self.seal(ContentType::Handshake, &KEY_UPDATE, room)?;
            self.sealing = self.secrets.next_sealing()?;
        }
        Ok(written + self.seal(ContentType::ApplicationData, plain, &mut room[written..])?)
    }

    fn say(&mut self, kind: ContentType, content: &[u8], to: &mut Vec<u8>) -> Result<(), Error> {
        let start = to.len();
        to.resize(start + sealed_bytes(content.len()), 0);
        self.seal(kind, content, &mut to[start..]).map(|_| ())
    }

    fn seal(&mut self, kind: ContentType, content: &[u8], room: &mut [u8]) -> Result<usize, Error> {
        let whole = sealed_bytes(content.len());
        let (header, body) = room[..whole].split_at_mut(HEADER_BYTES);
        let [high, low] = ((whole - HEADER_BYTES) as u16).to_be_bytes();
        header.copy_from_slice(&[ContentType::ApplicationData.into(), 3, 3, high, low]);
        let (sealed, behind) = body.split_at_mut(content.len());
        let nonce = self.sealing.next_nonce();
        let inner = [kind.into()];
        self.sealing
            .key
            .seal_out_of_place_scatter(nonce, Aad::from(header), content, sealed, &inner, behind)
            .map_err(|_| Error::EncryptError)?;
        Ok(whole)
    }
}

/// Key update message that does not ask the peer to update its key.
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

fn sealed_bytes(content: usize) -> usize {
    HEADER_BYTES + content + 1 + TAG_BYTES
}

/// Returns the length of the first record with its header, or `None` if the record is incomplete.
fn record_bytes(bytes: &[u8]) -> Result<Option<usize>, PeerError> {
    let [kind, _, _, high, low, ..] = bytes else { return Ok(None) };
    let kind = ContentType::from(*kind);
    if kind != ContentType::ApplicationData {
        return Err(inappropriate(kind));
    }
    let body = usize::from(u16::from_be_bytes([*high, *low]));
    if body > BODY_BYTES_MAX {
        return Err(oversized());
    }
    let whole = HEADER_BYTES + body;
    Ok((bytes.len() >= whole).then_some(whole))
}

/// Splits a decrypted record. Returns its type and the length of its content. The type follows the
/// content, and zeroes as padding follow the type.
fn content(opened: &[u8]) -> Result<(ContentType, usize), PeerError> {
    match opened.iter().rposition(|&byte| byte != 0) {
        _ if opened.len() > RECORD_BYTES + 1 => Err(oversized()),
        None => Err(misbehaved(PeerMisbehaved::IllegalTlsInnerPlaintext)),
        Some(len) => Ok((ContentType::from(opened[len]), len)),
    }
}

fn undecryptable() -> PeerError {
    (Error::DecryptError, Some(AlertDescription::BadRecordMac))
}

fn oversized() -> PeerError {
    (Error::PeerSentOversizedRecord, Some(AlertDescription::RecordOverflow))
}

fn misbehaved(how: PeerMisbehaved) -> PeerError {
    (Error::PeerMisbehaved(how), Some(AlertDescription::UnexpectedMessage))
}

fn inappropriate(got_type: ContentType) -> PeerError {
    let expect_types = vec![ContentType::ApplicationData];
    let error = Error::InappropriateMessage { expect_types, got_type };
    (error, Some(AlertDescription::UnexpectedMessage))
}

fn internal(error: Error) -> PeerError {
    (error, Some(AlertDescription::InternalError))
}

#[cfg(test)]
mod tests;
