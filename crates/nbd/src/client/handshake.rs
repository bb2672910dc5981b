//! The client's side of the negotiation, as a state machine over bytes.
//!
//! The states are: greeting; optionally TLS, which the caller has to start; choice of the reply
//! style (after a refusal, the next simpler style is requested); optionally `OPT_SET_META_CONTEXT`
//! for `base:allocation`; `OPT_GO`, or `OPT_INFO` and `OPT_ABORT` to query an export only;
//! `OPT_EXPORT_NAME` for old servers; `OPT_LIST` if the export does not exist, to show the names in
//! the error message; end.
//!
//! Invariants: one option is outstanding at a time. No bytes are consumed after the last message
//! that the negotiation needs. Specification: "Fixed newstyle negotiation", "Option types", "Block
//! size constraints".

use crate::wire::{
    BASE_ALLOCATION, EXPORT_NAME_ZEROES, FLAG_C_FIXED_NEWSTYLE, FLAG_C_NO_ZEROES,
    FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, INFO_BLOCK_SIZE, INFO_EXPORT, NBD_MAGIC, OPT_ABORT,
    OPT_EXPORT_NAME, OPT_EXTENDED_HEADERS, OPT_GO, OPT_INFO, OPT_LIST, OPT_SET_META_CONTEXT,
    OPT_STARTTLS, OPT_STRUCTURED_REPLY, OPTION_MAGIC, OPTION_REPLY_HEADER_BYTES,
    OPTION_REPLY_MAGIC, REP_ACK, REP_ERR_UNKNOWN, REP_ERR_UNSUP, REP_ERROR_BIT, REP_INFO,
    REP_META_CONTEXT, REP_SERVER, Reader, STRING_BYTES_MAX, put_option,
};
use crate::{ProtocolError, ReplyStyle, TransmissionFlags};

/// Longest data of an option reply that is accepted, in bytes.
pub const REPLY_DATA_BYTES_MAX: u32 = 64 * 1024;

const LISTED_MAX: usize = 32;

/// Result of a client's negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientSession {
    /// Size of the export in bytes.
    pub size_bytes: u64,
    /// Features of the export.
    pub flags: TransmissionFlags,
    /// Header format of the transmission phase.
    pub style: ReplyStyle,
    /// Smallest request and its alignment in bytes; 512 if the server did not state one.
    pub block_min: u32,
    /// Preferred request size in bytes; 4096 if the server did not state one.
    pub block_preferred: u32,
    /// Largest payload in bytes; 32 MiB if the server did not state one.
    pub block_max: u32,
    /// ID of the metadata context `base:allocation`, if requested and supported by the server.
    pub allocation: Option<u32>,
}

/// Progress of the negotiation after [`ClientHandshake::feed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientProgress {
    /// Send the output to the server; more input is needed.
    NeedMore,
    /// Do the TLS handshake with all bytes from now on, then call [`ClientHandshake::secured`].
    /// Clients reach this state only after [`ClientHandshake::with_tls`].
    StartTls,
    /// The negotiation has succeeded, and requests may be sent.
    Ready(ClientSession),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientState {
    Greeting,
    StartTls,
    /// The server agreed to TLS, and the caller has not completed the TLS handshake yet.
    Securing,
    Style(ReplyStyle),
    Context,
    Go,
    ExportName,
    /// The server refused the export. Its list of exports, for the error message, is awaited.
    List,
    Over,
}

/// The client's side of one negotiation.
#[derive(Debug)]
pub struct ClientHandshake {
    name: String,
    want: ReplyStyle,
    state: ClientState,
    /// Option that selects the export: `OPT_GO`, or `OPT_INFO` to query the export only.
    verb: u32,
    wants_allocation: bool,
    wants_tls: bool,
    no_zeroes: bool,
    described: bool,
    session: ClientSession,
    known: Vec<String>,
}

impl ClientHandshake {
    /// Starts a negotiation for the export `name`, or for the default export if `name` is empty.
    /// Replies will have the style `want`, or a simpler one if the server does not support `want`.
    ///
    /// # Errors
    /// [`ProtocolError::BadField`] if the name is longer than 4096 bytes or contains a NUL.
    pub fn new(name: &str, want: ReplyStyle) -> Result<Self, ProtocolError> {
        if name.len() > STRING_BYTES_MAX || name.contains('\0') {
            return Err(ProtocolError::BadField { what: "export name", value: name.len() as u64 });
        }
        Ok(ClientHandshake {
            name: name.to_owned(),
            want,
            state: ClientState::Greeting,
            verb: OPT_GO,
            wants_allocation: false,
            wants_tls: false,
            no_zeroes: false,
            described: false,
            session: ClientSession {
                size_bytes: 0,
                flags: TransmissionFlags::new(),
                style: ReplyStyle::Simple,
                block_min: 512,
                block_preferred: 4096,
                block_max: 32 * 1024 * 1024,
                allocation: None,
            },
            known: Vec::new(),
        })
    }

    /// Also requests the metadata context `base:allocation`, so that block status requests can be
    /// sent if the server supports it.
    #[must_use]
    pub fn with_allocation(mut self) -> Self {
        self.wants_allocation = true;
        self
    }

    /// Requires TLS.
    #[must_use]
    pub fn with_tls(mut self) -> Self {
        self.wants_tls = true;
        self
    }

    /// Continues after TLS has started. Appends the next bytes, which must be sent through TLS.
    ///
    /// # Panics
    /// Panics if the last progress was not [`ClientProgress::StartTls`].
    pub fn secured(&mut self, out: &mut Vec<u8>) {
        assert!(self.state == ClientState::Securing, "the last progress was `StartTls`");
        self.ask_for(self.want, out);
    }

    /// Only queries the export and then ends the negotiation. [`ClientProgress::Ready`] contains
    /// the result; the connection must be closed once the output is sent.
    #[must_use]
    pub fn only_asking(mut self) -> Self {
        self.verb = OPT_INFO;
        self
    }

    /// Returns the error of a refused export, if the client still waits for the server's list of
    /// exports. The client requests the list to show it in the error text. Callers need this error
    /// if the server closes the connection instead of sending the list.
    #[must_use]
    pub fn refusal(&self) -> Option<ProtocolError> {
        (self.state == ClientState::List).then(|| self.no_export())
    }

    fn no_export(&self) -> ProtocolError {
        ProtocolError::NoExport { name: self.name.clone(), known: self.known.clone() }
    }

    fn listed(&mut self, data: &[u8]) -> Result<(), ProtocolError> {
        let name = Reader::new(data).counted();
        // The name appears only in an error message, so a malformed one is accepted.
        self.known.push(printable(name.unwrap_or_default()));
        if self.known.len() < LISTED_MAX { Ok(()) } else { Err(self.no_export()) }
    }

    /// Handles every complete message at the front of `input`, and appends bytes to send to `out`.
    ///
    /// Returns the number of bytes consumed. The caller passes the remaining bytes again, together
    /// with more.
    ///
    /// # Errors
    /// Returns an error if the server violated the protocol or refused the export
    /// ([`ProtocolError::Refused`]).
    pub fn feed(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, ClientProgress), ProtocolError> {
        let mut used = 0;
        while self.state != ClientState::Over {
            let rest = &input[used..];
            let step = match self.state {
                ClientState::Securing if rest.is_empty() => {
                    return Ok((used, ClientProgress::StartTls));
                }
                ClientState::Securing => {
                    // A server that has agreed to TLS must send nothing more in plaintext. Bytes
                    // that arrive before the TLS handshake may come from an attacker.
                    let what = "number of bytes that the server sent before TLS started";
                    return Err(ProtocolError::BadField { what, value: rest.len() as u64 });
                }
                ClientState::Greeting => self.greeting(rest, out)?,
                ClientState::ExportName => self.export_name(rest),
                _ => self.option_reply(rest, out)?,
            };
            match step {
                None => return Ok((used, ClientProgress::NeedMore)),
                Some(bytes) => used += bytes,
            }
        }
        Ok((used, ClientProgress::Ready(self.session)))
    }

    fn greeting(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<usize>, ProtocolError> {
        let mut reader = Reader::new(input);
        for expected in [NBD_MAGIC, OPTION_MAGIC] {
            let Some(found) = reader.u64() else { return Ok(None) };
            ProtocolError::check_magic("the greeting", found, expected)?;
        }
        let Some(flags) = reader.u16() else { return Ok(None) };
        if flags & FLAG_FIXED_NEWSTYLE == 0 {
            return Err(ProtocolError::NotFixedNewstyle(flags));
        }
        self.no_zeroes = flags & FLAG_NO_ZEROES != 0;
        let zeroes = if self.no_zeroes { FLAG_C_NO_ZEROES } else { 0 };
        out.extend_from_slice(&(FLAG_C_FIXED_NEWSTYLE | zeroes).to_be_bytes());
        if self.wants_tls {
            self.state = ClientState::StartTls;
            put_option(out, OPT_STARTTLS, &[]);
        } else {
            self.ask_for(self.want, out);
        }
        Ok(Some(18))
    }

    fn ask_for(&mut self, style: ReplyStyle, out: &mut Vec<u8>) {
        self.state = ClientState::Style(style);
        match style {
            ReplyStyle::Extended => put_option(out, OPT_EXTENDED_HEADERS, &[]),
            ReplyStyle::Structured => put_option(out, OPT_STRUCTURED_REPLY, &[]),
            ReplyStyle::Simple => self.go(out),
        }
    }

    fn styled(&mut self, out: &mut Vec<u8>) {
        if !self.wants_allocation || self.session.style == ReplyStyle::Simple {
            return self.go(out);
        }
        self.state = ClientState::Context;
        let data = [
            &self.name_len().to_be_bytes()[..],
            self.name.as_bytes(),
            &1u32.to_be_bytes(),
            &(BASE_ALLOCATION.len() as u32).to_be_bytes(),
            BASE_ALLOCATION.as_bytes(),
        ];
        put_option(out, OPT_SET_META_CONTEXT, &data.concat());
    }

    fn go(&mut self, out: &mut Vec<u8>) {
        self.state = ClientState::Go;
        let (name, infos) = (self.name.as_bytes(), [1, INFO_BLOCK_SIZE].map(u16::to_be_bytes));
        let data = [&self.name_len().to_be_bytes()[..], name, infos.as_flattened()];
        put_option(out, self.verb, &data.concat());
    }

    fn name_len(&self) -> u32 {
        u32::try_from(self.name.len()).expect("the name was checked to be at most 4096 bytes")
    }

    const fn open_option(&self) -> u32 {
        match self.state {
            ClientState::Style(ReplyStyle::Extended) => OPT_EXTENDED_HEADERS,
            ClientState::Style(_) => OPT_STRUCTURED_REPLY,
            ClientState::StartTls => OPT_STARTTLS,
            ClientState::Context => OPT_SET_META_CONTEXT,
            ClientState::List => OPT_LIST,
            _ => self.verb,
        }
    }

    fn option_reply(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<usize>, ProtocolError> {
        let mut reader = Reader::new(input);
        let Some(found) = reader.u64() else { return Ok(None) };
        ProtocolError::check_magic("a reply to an option", found, OPTION_REPLY_MAGIC)?;
        let (Some(option), Some(kind), Some(length)) = (reader.u32(), reader.u32(), reader.u32())
        else {
            return Ok(None);
        };
        if option != self.open_option() {
            let expected = self.open_option();
            return Err(ProtocolError::WrongOption { found: option, expected });
        }
        if length > REPLY_DATA_BYTES_MAX {
            let max = REPLY_DATA_BYTES_MAX;
            return Err(ProtocolError::OptionTooLong { option, length, max });
        }
        let Some(data) = reader.bytes(length as usize) else { return Ok(None) };
        self.answered(kind, data, out)?;
        Ok(Some(OPTION_REPLY_HEADER_BYTES + data.len()))
    }

    fn answered(&mut self, kind: u32, data: &[u8], out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        match (self.state, kind) {
            (ClientState::StartTls, REP_ACK) => self.state = ClientState::Securing,
            (ClientState::Style(style), REP_ACK) => {
                self.session.style = style;
                self.styled(out);
            }
            (ClientState::Style(ReplyStyle::Extended), REP_ERR_UNSUP) => {
                self.ask_for(ReplyStyle::Structured, out);
            }
            (ClientState::Style(_), REP_ERR_UNSUP) => self.go(out),
            (ClientState::Context, REP_META_CONTEXT) => self.context(data)?,
            // Metadata contexts are optional: on an error the negotiation continues.
            (ClientState::Context, code) if code == REP_ACK || code & REP_ERROR_BIT != 0 => {
                self.go(out)
            }
            (ClientState::Go, REP_INFO) => self.information(data)?,
            (ClientState::Go, REP_ACK) if self.described => {
                self.state = ClientState::Over;
                if self.verb == OPT_INFO {
                    put_option(out, OPT_ABORT, &[]);
                }
            }
            (ClientState::Go, REP_ERR_UNSUP)
                if self.session.style != ReplyStyle::Extended && self.verb == OPT_GO =>
            {
                self.state = ClientState::ExportName;
                put_option(out, OPT_EXPORT_NAME, self.name.as_bytes());
            }
            (ClientState::Go, REP_ERR_UNKNOWN) => {
                self.state = ClientState::List;
                put_option(out, OPT_LIST, &[]);
            }
            (ClientState::List, REP_SERVER) => self.listed(data)?,
            (ClientState::List, _) => return Err(self.no_export()),
            (_, code) if code & REP_ERROR_BIT != 0 => {
                let message = printable(&data[..data.len().min(STRING_BYTES_MAX)]);
                let option = self.open_option();
                return Err(ProtocolError::Refused { option, code, message });
            }
            (_, kind) => {
                let what = "type of a reply to an option";
                return Err(ProtocolError::BadField { what, value: kind.into() });
            }
        }
        Ok(())
    }

    fn context(&mut self, data: &[u8]) -> Result<(), ProtocolError> {
        let mut reader = Reader::new(data);
        let Some(id) = reader.u32() else {
            let what = "length of a metadata context";
            return Err(ProtocolError::BadField { what, value: data.len() as u64 });
        };
        // Contexts that were not requested are ignored.
        if reader.rest() == BASE_ALLOCATION.as_bytes() {
            self.session.allocation = Some(id);
        }
        Ok(())
    }

    fn information(&mut self, data: &[u8]) -> Result<(), ProtocolError> {
        let mut reader = Reader::new(data);
        let (what, value) = match reader.u16() {
            None => ("length of an information", data.len() as u64),
            Some(INFO_EXPORT) => match (reader.u64(), reader.u16(), reader.is_empty()) {
                (Some(size_bytes), Some(flags), true) => {
                    self.describe(size_bytes, flags);
                    return Ok(());
                }
                _ => ("length of the export's information", data.len() as u64),
            },
            Some(INFO_BLOCK_SIZE) => match (reader.u32(), reader.u32(), reader.u32()) {
                (Some(min), Some(preferred), Some(max)) if reader.is_empty() => {
                    if !min.is_power_of_two() {
                        ("minimum block size", min.into())
                    } else if !preferred.is_power_of_two() {
                        ("preferred block size", preferred.into())
                    } else if max < min {
                        ("maximum block size", max.into())
                    } else {
                        let session = &mut self.session;
                        (session.block_min, session.block_preferred) = (min, preferred);
                        session.block_max = max;
                        return Ok(());
                    }
                }
                _ => ("length of the block sizes", data.len() as u64),
            },
            Some(_) => return Ok(()),
        };
        Err(ProtocolError::BadField { what, value })
    }

    const fn describe(&mut self, size_bytes: u64, flags: u16) {
        self.session.size_bytes = size_bytes;
        self.session.flags = TransmissionFlags::from_bits(flags);
        self.described = true;
    }

    fn export_name(&mut self, input: &[u8]) -> Option<usize> {
        let zeroes = if self.no_zeroes { 0 } else { EXPORT_NAME_ZEROES };
        let mut reader = Reader::new(input);
        let (size_bytes, flags) = (reader.u64()?, reader.u16()?);
        reader.bytes(zeroes)?;
        self.describe(size_bytes, flags);
        self.state = ClientState::Over;
        Some(10 + zeroes)
    }
}

/// Replaces the control characters in a text of the server, which may be shown on a terminal.
fn printable(text: &[u8]) -> String {
    String::from_utf8_lossy(text).replace(char::is_control, "\u{fffd}")
}
