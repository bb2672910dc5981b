//! The server's side of fixed newstyle negotiation, as a state machine over bytes.
//!
//! This module owns the state between the greeting and the first request. The connection passes
//! received bytes; answers are appended to a buffer of the caller. Option parsers are in option.rs.
//!
//! States: client flags, then options, then end. Option data that are too long are skipped.
//!
//! Invariants: the outcome does not depend on how the bytes were split into calls of `feed`. A
//! negotiation has at most [`OPTIONS_MAX`] options with [`OPTION_BYTES_MAX`] data bytes each, and
//! [`ANSWER_BYTES_MAX`] bytes of answers; each export raises these limits, because clients may
//! query every export ([`OPTIONS_PER_EXPORT`]). Nothing is consumed after [`Progress::Ready`] or an
//! error.
//!
//! An upgrade to TLS discards everything that was negotiated before it, and bytes after the request
//! for TLS end the connection: both may come from an attacker on the network (the class of
//! CVE-2021-3716). Specification: "Handshake", "Option types", and for TLS the modes NOTLS,
//! SELECTIVETLS and FORCEDTLS.

use crate::error::ProtocolError;
use crate::export::{ExportCatalog, ReplyStyle, Session, WantedExport};
use crate::option::{
    ContextRequest, InfoRequest, OptionReply, Refusal, UNKNOWN_EXPORT, find, no_data, wanted,
};
use crate::wire::{
    EXPORT_NAME_ZEROES, FLAG_C_FIXED_NEWSTYLE, FLAG_C_NO_ZEROES, FLAG_FIXED_NEWSTYLE,
    FLAG_NO_ZEROES, INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_EXPORT, INFO_NAME, NBD_MAGIC,
    OPT_ABORT, OPT_EXPORT_NAME, OPT_EXTENDED_HEADERS, OPT_GO, OPT_INFO, OPT_LIST,
    OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT, OPT_STARTTLS, OPT_STRUCTURED_REPLY,
    OPTION_HEADER_BYTES, OPTION_MAGIC, REP_ACK, REP_ERR_EXT_HEADER_REQD, REP_ERR_INVALID,
    REP_ERR_POLICY, REP_ERR_TLS_REQD, REP_ERR_TOO_BIG, REP_ERR_UNSUP, REP_INFO, REP_SERVER, Reader,
    STRING_BYTES_MAX, string,
};

/// Longest option data that are parsed, in bytes. Longer data are skipped and refused.
pub const OPTION_BYTES_MAX: u32 = 64 * 1024;
/// Longest option data that are skipped, in bytes. Longer data end the connection.
pub const OPTION_SKIP_BYTES_MAX: u32 = 1024 * 1024;
/// Size of the receive buffer that the negotiation needs, in bytes.
pub const INPUT_BYTES_MAX: usize = OPTION_HEADER_BYTES + OPTION_BYTES_MAX as usize;
/// Maximum number of options in a negotiation. Each export adds [`OPTIONS_PER_EXPORT`].
pub const OPTIONS_MAX: u32 = 4096;
/// Number of options that each export adds to the limit. A client that lists a server's exports
/// sends two for each export.
pub const OPTIONS_PER_EXPORT: u32 = 4;
/// Maximum total length of the answers in a negotiation, in bytes. Each export adds to the limit.
pub const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Number of bytes that each export adds to [`ANSWER_BYTES_MAX`], besides the lengths of its name
/// and description.
const ANSWER_BYTES_PER_EXPORT: usize = 1024;
/// Number of bytes of an `OPT_LIST` answer after which the server waits until the client has
/// received them.
const LIST_PART_BYTES: usize = 64 * 1024;
/// ID under which `base:allocation` is selected.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// Progress of the negotiation after [`Handshake::feed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// All complete messages were handled; more input is needed.
    NeedMore,
    /// The output contains only part of a long answer. Send it, then feed the remaining bytes
    /// again.
    Unsent,
    /// The catalog is still looking for an export or a list
    /// ([`is_pending`](ExportCatalog::is_pending)).
    /// Feed the remaining bytes again once the catalog is done.
    Pending,
    /// Transmission begins with the first byte that was not consumed.
    Ready(Session),
    /// The client requested TLS, and the server agreed. Send the output, do the TLS handshake with
    /// all bytes received from now on, then call [`Handshake::secured`].
    StartTls,
    /// The client ended the session. Send the output, then close the connection.
    Closed,
}

/// TLS policy of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TlsMode {
    /// The server has no TLS, and refuses requests for it.
    #[default]
    None,
    /// Clients may use TLS, but need not.
    Offered,
    /// Clients must use TLS; without it every option is refused.
    Required,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TlsState {
    Plain(TlsMode),
    Upgrading,
    Active,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HandshakeState {
    ClientFlags,
    Options,
    Skip { left: usize },
    Over,
}

/// Result of parsing one message: the number of bytes consumed, and the progress that
/// [`Handshake::feed`] returns. If the progress is `None`, `feed` parses the next message instead.
type HandshakeStep = (usize, Option<Progress>);

const NEED_MORE: HandshakeStep = (0, Some(Progress::NeedMore));

fn answer_bytes_max(catalog: &dyn ExportCatalog) -> usize {
    let exports = (0..catalog.listed()).filter_map(|index| catalog.listing(index));
    let of_each = exports.map(|(name, description)| {
        ANSWER_BYTES_PER_EXPORT.saturating_add(name.len()).saturating_add(description.len())
    });
    of_each.fold(ANSWER_BYTES_MAX, usize::saturating_add)
}

/// The server's side of one negotiation.
#[derive(Debug)]
pub struct Handshake {
    state: HandshakeState,
    tls: TlsState,
    fixed_newstyle: bool,
    no_zeroes: bool,
    block_sizes: bool,
    style: ReplyStyle,
    context_export: Option<usize>,
    /// Index of the export with which the answer to `OPT_LIST` continues.
    list_from: usize,
    /// Number of exports in the longest list sent to the client, and the limit on answer bytes at
    /// that time. If the catalog shrinks later, the limits of this negotiation are not reduced
    /// below these values.
    listed: (usize, usize),
    options: u32,
    answer_bytes: usize,
}

impl Default for Handshake {
    fn default() -> Self {
        Self::new()
    }
}

impl Handshake {
    /// Starts a negotiation of a server without TLS.
    pub const fn new() -> Self {
        Handshake::with_tls(TlsMode::None)
    }

    /// Starts a negotiation. `mode` is the server's TLS policy.
    pub const fn with_tls(mode: TlsMode) -> Self {
        Handshake {
            state: HandshakeState::ClientFlags,
            tls: TlsState::Plain(mode),
            fixed_newstyle: false,
            no_zeroes: false,
            block_sizes: false,
            style: ReplyStyle::Simple,
            context_export: None,
            list_from: 0,
            listed: (0, 0),
            options: 0,
            answer_bytes: 0,
        }
    }

    /// Appends the 18-byte greeting, which a server sends first.
    pub fn greeting(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&NBD_MAGIC.to_be_bytes());
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
    }

    /// Continues after the TLS handshake, with bytes that arrived encrypted. The negotiation starts
    /// again, except that the client's flags stay.
    ///
    /// # Panics
    /// Panics if the last progress was not [`Progress::StartTls`].
    pub const fn secured(&mut self) {
        assert!(
            matches!(self.tls, TlsState::Upgrading),
            "TLS starts only after a client requested it"
        );
        self.tls = TlsState::Active;
        (self.block_sizes, self.style, self.context_export) = (false, ReplyStyle::Simple, None);
    }

    /// Handles every complete message at the front of `input` and appends the answers to `out`.
    ///
    /// Returns the number of bytes consumed. The caller keeps the remaining bytes and passes them
    /// again, together with bytes received since, in a buffer of [`INPUT_BYTES_MAX`].
    ///
    /// # Errors
    /// Returns an error if the client violated the protocol. The connection must then be closed;
    /// answers already in `out` may be sent first.
    pub fn feed(
        &mut self,
        catalog: &dyn ExportCatalog,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Progress), ProtocolError> {
        let mut used = 0;
        loop {
            let step = self.step(catalog, &input[used..], out);
            let (bytes, progress) = step.inspect_err(|_| self.state = HandshakeState::Over)?;
            used += bytes;
            match progress {
                None => {}
                Some(Progress::StartTls) if used < input.len() => {
                    self.state = HandshakeState::Over;
                    return Err(ProtocolError::BytesAfterStartTls(input.len() - used));
                }
                Some(progress) => {
                    match progress {
                        Progress::StartTls => self.tls = TlsState::Upgrading,
                        Progress::Ready(_) | Progress::Closed => self.state = HandshakeState::Over,
                        Progress::NeedMore | Progress::Unsent | Progress::Pending => {}
                    }
                    return Ok((used, progress));
                }
            }
        }
    }

    /// Returns the export, or the list of all exports, that the negotiation needs from the catalog.
    /// `input` must begin with the option for which [`Handshake::feed`] returned
    /// [`Progress::Pending`].
    pub fn wanted(input: &[u8]) -> Option<WantedExport<'_>> {
        let mut reader = Reader::new(input);
        let (_magic, option, length) = (reader.u64()?, reader.u32()?, reader.u32()?);
        wanted(option, reader.bytes(length as usize)?)
    }

    fn step(
        &mut self,
        catalog: &dyn ExportCatalog,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<HandshakeStep, ProtocolError> {
        match self.state {
            HandshakeState::Over => Ok((0, Some(Progress::Closed))),
            _ if self.tls == TlsState::Upgrading => Ok((0, Some(Progress::StartTls))),
            HandshakeState::ClientFlags => self.client_flags(input),
            HandshakeState::Skip { .. } if input.is_empty() => Ok(NEED_MORE),
            HandshakeState::Skip { left } => {
                let bytes = left.min(input.len());
                self.state = match left - bytes {
                    0 => HandshakeState::Options,
                    left => HandshakeState::Skip { left },
                };
                Ok((bytes, None))
            }
            HandshakeState::Options => {
                let before = out.len();
                let step = self.option(catalog, input, out)?;
                self.answer_bytes += out.len() - before;
                if self.answer_bytes > ANSWER_BYTES_MAX {
                    let max = answer_bytes_max(catalog).max(self.listed.1);
                    if self.answer_bytes > max {
                        return Err(ProtocolError::TooManyReplyBytes(max));
                    }
                }
                Ok(step)
            }
        }
    }

    fn client_flags(&mut self, input: &[u8]) -> Result<HandshakeStep, ProtocolError> {
        let Some(flags) = Reader::new(input).u32() else { return Ok(NEED_MORE) };
        if flags & !(FLAG_C_FIXED_NEWSTYLE | FLAG_C_NO_ZEROES) != 0 {
            return Err(ProtocolError::ClientFlags(flags));
        }
        self.fixed_newstyle = flags & FLAG_C_FIXED_NEWSTYLE != 0;
        self.no_zeroes = flags & FLAG_C_NO_ZEROES != 0;
        self.state = HandshakeState::Options;
        Ok((4, None))
    }

    fn option(
        &mut self,
        catalog: &dyn ExportCatalog,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<HandshakeStep, ProtocolError> {
        let mut reader = Reader::new(input);
        let Some(magic) = reader.u64() else { return Ok(NEED_MORE) };
        ProtocolError::check_magic("an option", magic, OPTION_MAGIC)?;
        let (Some(option), Some(length)) = (reader.u32(), reader.u32()) else {
            return Ok(NEED_MORE);
        };
        if !self.fixed_newstyle && option != OPT_EXPORT_NAME {
            return Err(ProtocolError::OptionWithoutFixedNewstyle(option));
        }
        if length > OPTION_BYTES_MAX {
            self.count_option(catalog)?;
            return self.too_long(option, length, out);
        }
        let Some(data) = reader.bytes(length as usize) else { return Ok(NEED_MORE) };
        let wanted = if self.needs_tls(option).is_none() { wanted(option, data) } else { None };
        if wanted.is_some_and(|wanted| catalog.is_pending(wanted)) {
            return Ok((0, Some(Progress::Pending)));
        }
        if self.list_from == 0 {
            self.count_option(catalog)?;
        }
        self.dispatch(catalog, option, data, out)
    }

    fn count_option(&mut self, catalog: &dyn ExportCatalog) -> Result<(), ProtocolError> {
        self.options += 1;
        if self.options > OPTIONS_MAX {
            let exports = catalog.listed().max(self.listed.0);
            let exports = u32::try_from(exports).unwrap_or(u32::MAX);
            let max = OPTIONS_MAX.saturating_add(exports.saturating_mul(OPTIONS_PER_EXPORT));
            if self.options > max {
                return Err(ProtocolError::TooManyOptions(max));
            }
        }
        Ok(())
    }

    fn too_long(
        &mut self,
        option: u32,
        length: u32,
        out: &mut Vec<u8>,
    ) -> Result<HandshakeStep, ProtocolError> {
        if option == OPT_EXPORT_NAME {
            return Err(ProtocolError::ExportName("the name is longer than 4096 bytes"));
        }
        if length > OPTION_SKIP_BYTES_MAX {
            let max = OPTION_SKIP_BYTES_MAX;
            return Err(ProtocolError::OptionTooLong { option, length, max });
        }
        if option == OPT_SET_META_CONTEXT {
            self.context_export = None;
        }
        let why = "the data of the option are longer than 64 KiB";
        let too_big = Refusal { code: REP_ERR_TOO_BIG, why };
        let Refusal { code, why } = self.needs_tls(option).unwrap_or(too_big);
        OptionReply { out, option }.packet(code, &[why.as_bytes()]);
        self.state = HandshakeState::Skip { left: length as usize };
        Ok((OPTION_HEADER_BYTES, None))
    }

    fn dispatch(
        &mut self,
        catalog: &dyn ExportCatalog,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<HandshakeStep, ProtocolError> {
        let used = OPTION_HEADER_BYTES + data.len();
        if option == OPT_EXPORT_NAME {
            let session = self.export_name(catalog, data, out)?;
            return Ok((used, Some(Progress::Ready(session))));
        }
        let reply = &mut OptionReply { out, option };
        let refusal = match self.answer(catalog, data, reply) {
            Ok(Some(Progress::Unsent)) => return Ok((0, Some(Progress::Unsent))),
            Ok(progress) => {
                reply.packet(REP_ACK, &[]);
                return Ok((used, progress));
            }
            Err(refusal) => refusal,
        };
        let known = match wanted(option, data) {
            Some(WantedExport::Export(name)) if refusal == UNKNOWN_EXPORT => {
                catalog.why_refused(name)
            }
            _ => None,
        };
        match known {
            Some(why) => reply.packet(REP_ERR_POLICY, &[why.as_bytes()]),
            None => reply.packet(refusal.code, &[refusal.why.as_bytes()]),
        }
        Ok((used, None))
    }

    /// Carries out an option. The caller then appends the final reply, an acknowledgement or a
    /// refusal.
    ///
    /// Returns the progress that the caller must report after the acknowledgement, if any. With
    /// [`Progress::Unsent`], the option is not finished, and there is no final reply yet.
    fn answer(
        &mut self,
        catalog: &dyn ExportCatalog,
        data: &[u8],
        reply: &mut OptionReply<'_>,
    ) -> Result<Option<Progress>, Refusal> {
        if reply.option == OPT_ABORT {
            return Ok(Some(Progress::Closed));
        }
        if let Some(refusal) = self.needs_tls(reply.option) {
            return Err(refusal);
        }
        match reply.option {
            OPT_STARTTLS => {
                self.may_start_tls(data)?;
                return Ok(Some(Progress::StartTls));
            }
            OPT_LIST => {
                no_data(data)?;
                return Ok(self.list(catalog, reply));
            }
            OPT_INFO => drop(self.info(catalog, data, reply)?),
            OPT_GO => {
                let export = self.info(catalog, data, reply)?;
                return Ok(Some(Progress::Ready(self.session(export))));
            }
            OPT_STRUCTURED_REPLY => self.use_style(ReplyStyle::Structured, data)?,
            OPT_EXTENDED_HEADERS => self.use_style(ReplyStyle::Extended, data)?,
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => self.contexts(catalog, data, reply)?,
            _ => return Err(Refusal { code: REP_ERR_UNSUP, why: "unknown option" }),
        }
        Ok(None)
    }

    fn needs_tls(&self, option: u32) -> Option<Refusal> {
        let waits = self.tls == TlsState::Plain(TlsMode::Required) && option != OPT_STARTTLS;
        waits.then_some(Refusal { code: REP_ERR_TLS_REQD, why: "this server requires TLS" })
    }

    fn may_start_tls(&self, data: &[u8]) -> Result<(), Refusal> {
        no_data(data)?;
        match self.tls {
            TlsState::Plain(TlsMode::None) => {
                Err(Refusal { code: REP_ERR_UNSUP, why: "this server does not support TLS" })
            }
            TlsState::Plain(TlsMode::Offered | TlsMode::Required) => Ok(()),
            TlsState::Upgrading | TlsState::Active => {
                Err(Refusal::invalid("TLS is in use already"))
            }
        }
    }

    /// Adds a part of the answer to `OPT_LIST`. Returns [`Progress::Unsent`] if exports are left.
    fn list(
        &mut self,
        catalog: &dyn ExportCatalog,
        reply: &mut OptionReply<'_>,
    ) -> Option<Progress> {
        let before = reply.out.len();
        for index in self.list_from..catalog.listed() {
            if reply.out.len() - before >= LIST_PART_BYTES {
                self.list_from = index;
                return Some(Progress::Unsent);
            }
            if let Some((name, text)) = catalog.listing(index) {
                let len = u32::try_from(name.len()).expect("names are at most 4096 bytes");
                let parts = [&len.to_be_bytes()[..], name.as_bytes(), text.as_bytes()];
                reply.packet(REP_SERVER, &parts);
            }
        }
        self.list_from = 0;
        if catalog.listed() > self.listed.0 {
            self.listed = (catalog.listed(), answer_bytes_max(catalog));
        }
        None
    }

    const fn session(&self, export: usize) -> Session {
        let base_allocation = match self.context_export {
            Some(selected) if selected == export => Some(BASE_ALLOCATION_ID),
            _ => None,
        };
        Session {
            export,
            style: self.style,
            base_allocation,
            no_zeroes: self.no_zeroes,
            block_sizes: self.block_sizes,
        }
    }

    fn export_name(
        &self,
        catalog: &dyn ExportCatalog,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Session, ProtocolError> {
        let refuse = |why| ProtocolError::ExportName(why);
        if self.needs_tls(OPT_EXPORT_NAME).is_some() {
            return Err(refuse(
                "this server requires TLS, but the client requested an export without it",
            ));
        }
        if self.style == ReplyStyle::Extended {
            return Err(refuse("extended headers need OPT_GO"));
        }
        if data.len() > STRING_BYTES_MAX {
            return Err(refuse("the name is longer than 4096 bytes"));
        }
        let name = string(data).ok_or(refuse("the name is not UTF-8, or contains a NUL"))?;
        let (index, export) = find(catalog, name).ok_or(refuse("no such export"))?;
        out.extend_from_slice(&catalog.size_bytes(index).to_be_bytes());
        out.extend_from_slice(&export.flags.negotiated(self.style).bits().to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; EXPORT_NAME_ZEROES]);
        }
        Ok(self.session(index))
    }

    fn info(
        &mut self,
        catalog: &dyn ExportCatalog,
        data: &[u8],
        reply: &mut OptionReply<'_>,
    ) -> Result<usize, Refusal> {
        let request = InfoRequest::parse(data)?;
        self.block_sizes |= request.wants(INFO_BLOCK_SIZE);
        let (index, export) = find(catalog, request.name).ok_or(UNKNOWN_EXPORT)?;
        let (size_bytes, flags) = (catalog.size_bytes(index), export.flags.negotiated(self.style));
        let sizes = [export.block_min, export.block_preferred, export.block_max];
        let [min, preferred, max] = sizes.map(u32::to_be_bytes);
        let mut info = |kind: u16, data: &[&[u8]]| {
            reply.packet(REP_INFO, &[&kind.to_be_bytes(), &data.concat()])
        };
        info(INFO_EXPORT, &[&size_bytes.to_be_bytes(), &flags.bits().to_be_bytes()]);
        info(INFO_BLOCK_SIZE, &[&min, &preferred, &max]);
        if request.wants(INFO_NAME) {
            info(INFO_NAME, &[export.name.as_bytes()]);
        }
        if request.wants(INFO_DESCRIPTION) {
            info(INFO_DESCRIPTION, &[export.description.as_bytes()]);
        }
        Ok(index)
    }

    fn use_style(&mut self, style: ReplyStyle, data: &[u8]) -> Result<(), Refusal> {
        no_data(data)?;
        let why = match self.style {
            ReplyStyle::Extended => "extended headers are in use already",
            in_use if in_use == style => "structured replies are in use already",
            _ => {
                self.style = style;
                return Ok(());
            }
        };
        let code = if self.style == style { REP_ERR_INVALID } else { REP_ERR_EXT_HEADER_REQD };
        Err(Refusal { code, why })
    }

    fn contexts(
        &mut self,
        catalog: &dyn ExportCatalog,
        data: &[u8],
        reply: &mut OptionReply<'_>,
    ) -> Result<(), Refusal> {
        let selects = reply.option == OPT_SET_META_CONTEXT;
        if selects {
            // A new selection of contexts replaces the previous one, even if the new one fails.
            self.context_export = None;
        }
        if self.style == ReplyStyle::Simple {
            return Err(Refusal::invalid("negotiate structured replies before metadata contexts"));
        }
        let request = ContextRequest::parse(data)?;
        let (index, _) = find(catalog, request.name).ok_or(UNKNOWN_EXPORT)?;
        if selects && request.exact {
            self.context_export = Some(index);
            reply.base_allocation(BASE_ALLOCATION_ID);
        } else if !selects && (request.exact || request.wildcard || request.queries == 0) {
            reply.base_allocation(0);
        }
        Ok(())
    }
}
