//! Option data of the negotiation, and the replies to options.
//!
//! This module owns the layout of the data after an option's header (names, information requests,
//! context queries) and of the reply packets. The server's handshake calls it.
//!
//! Invariants: a parser accepts data only if it consumes them exactly. Nothing is allocated for a
//! client's data, so lengths that the client chooses cost nothing. Specification: "Option types",
//! "Option reply types", "The `base:` metadata namespace".

use crate::export::{Catalog, ExportInfo, Wanted};
use crate::wire::{
    BASE_ALLOCATION, INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_EXPORT, INFO_NAME, OPT_EXPORT_NAME,
    OPT_GO, OPT_INFO, OPT_LIST, OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT, OPTION_REPLY_MAGIC,
    REP_ACK, REP_ERR_INVALID, REP_ERR_UNKNOWN, REP_ERR_UNSUP, REP_INFO, REP_META_CONTEXT,
    REP_SERVER, Reader, STRING_BYTES_MAX, string,
};

/// Number of bytes of an `OPT_LIST` answer after which the server waits until the client has
/// received them.
const LIST_PART_BYTES: usize = 64 * 1024;

/// Reason why the server refuses an option. The negotiation continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Type of the reply, one of `REP_ERR_*`.
    pub code: u32,
    /// Text of the refusal, for the client's user.
    pub why: &'static str,
}

impl Refusal {
    pub const fn invalid(why: &'static str) -> Self {
        Refusal { code: REP_ERR_INVALID, why }
    }
}

fn name_of(bytes: &[u8]) -> Result<&str, Refusal> {
    if bytes.len() > STRING_BYTES_MAX {
        return Err(Refusal::invalid("the export name is longer than 4096 bytes"));
    }
    string(bytes).ok_or(Refusal::invalid("the export name is not UTF-8, or contains a NUL"))
}

/// Data of `OPT_INFO` and `OPT_GO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// Name of the export, empty for the default one.
    pub name: &'a str,
    pub wants_name: bool,
    pub wants_block_size: bool,
    pub wants_description: bool,
}

impl<'a> InfoRequest<'a> {
    pub fn parse(data: &'a [u8]) -> Result<Self, Refusal> {
        let mut reader = Reader::new(data);
        let short =
            Refusal::invalid("the name or the information requests exceed the option's data");
        let name = name_of(reader.counted().ok_or(short)?)?;
        let count = reader.u16().ok_or(short)?;
        let mut request = InfoRequest {
            name,
            wants_name: false,
            wants_block_size: false,
            wants_description: false,
        };
        for _ in 0..count {
            match reader.u16().ok_or(short)? {
                INFO_NAME => request.wants_name = true,
                INFO_BLOCK_SIZE => request.wants_block_size = true,
                INFO_DESCRIPTION => request.wants_description = true,
                _ => {}
            }
        }
        if !reader.is_empty() {
            return Err(Refusal::invalid("there are extra bytes after the information requests"));
        }
        Ok(request)
    }
}

/// Data of `OPT_LIST_META_CONTEXT` and `OPT_SET_META_CONTEXT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextRequest<'a> {
    /// Name of the export, empty for the default one.
    pub name: &'a str,
    pub queries: u32,
    pub exact: bool,
    /// True if one of the queries is `base:`, a wildcard that is valid in lists only.
    pub wildcard: bool,
}

impl<'a> ContextRequest<'a> {
    /// Parses the data of `OPT_LIST_META_CONTEXT` or `OPT_SET_META_CONTEXT`. Queries of unknown
    /// contexts and namespaces are ignored.
    pub fn parse(data: &'a [u8]) -> Result<Self, Refusal> {
        let mut reader = Reader::new(data);
        let short = Refusal::invalid("the name or the queries exceed the option's data");
        let name = name_of(reader.counted().ok_or(short)?)?;
        let queries = reader.u32().ok_or(short)?;
        let mut request = ContextRequest { name, queries, exact: false, wildcard: false };
        for _ in 0..queries {
            let query = string(reader.counted().ok_or(short)?)
                .ok_or(Refusal::invalid("a query is not UTF-8, contains a NUL, or is too long"))?;
            request.exact |= query == BASE_ALLOCATION;
            request.wildcard |= query == "base:";
        }
        if !reader.is_empty() {
            return Err(Refusal::invalid("there are extra bytes after the queries"));
        }
        Ok(request)
    }
}

/// Writer of the replies to one option.
#[derive(Debug)]
pub struct OptionReply<'a> {
    out: &'a mut Vec<u8>,
    option: u32,
}

impl<'a> OptionReply<'a> {
    pub const fn new(out: &'a mut Vec<u8>, option: u32) -> Self {
        OptionReply { out, option }
    }

    fn packet(&mut self, kind: u32, parts: &[&[u8]]) {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let len = u32::try_from(bytes)
            .expect("two strings of at most 4096 bytes and some numbers fit 4 GiB");
        self.out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        self.out.extend_from_slice(&self.option.to_be_bytes());
        self.out.extend_from_slice(&kind.to_be_bytes());
        self.out.extend_from_slice(&len.to_be_bytes());
        for part in parts {
            self.out.extend_from_slice(part);
        }
    }

    pub fn ack(&mut self) {
        self.packet(REP_ACK, &[]);
    }

    pub fn error(&mut self, refusal: Refusal) {
        self.error_saying(refusal.code, refusal.why);
    }

    pub fn error_saying(&mut self, code: u32, why: &str) {
        self.packet(code, &[why.as_bytes()]);
    }

    pub fn server(&mut self, name: &str, description: &str) {
        let name_len = u32::try_from(name.len()).expect("names are at most 4096 bytes");
        let (name, text) = (name.as_bytes(), description.as_bytes());
        self.packet(REP_SERVER, &[&name_len.to_be_bytes(), name, text]);
    }

    pub fn info_export(&mut self, size_bytes: u64, flags: u16) {
        let kind = INFO_EXPORT.to_be_bytes();
        self.packet(REP_INFO, &[&kind, &size_bytes.to_be_bytes(), &flags.to_be_bytes()]);
    }

    pub fn info_block_size(&mut self, export: &ExportInfo) {
        let (min, preferred) = (export.block_min.to_be_bytes(), export.block_preferred);
        let (preferred, max) = (preferred.to_be_bytes(), export.block_max.to_be_bytes());
        self.packet(REP_INFO, &[&INFO_BLOCK_SIZE.to_be_bytes(), &min, &preferred, &max]);
    }

    pub fn info_name(&mut self, export: &ExportInfo) {
        self.packet(REP_INFO, &[&INFO_NAME.to_be_bytes(), export.name.as_bytes()]);
    }

    pub fn info_description(&mut self, export: &ExportInfo) {
        self.packet(REP_INFO, &[&INFO_DESCRIPTION.to_be_bytes(), export.description.as_bytes()]);
    }

    pub fn base_allocation(&mut self, id: u32) {
        self.packet(REP_META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()]);
    }
}

/// Returns the export that an option names, or [`Wanted::List`] for the list option. Returns `None`
/// for other options and for malformed data.
pub(super) fn wanted(option: u32, data: &[u8]) -> Option<Wanted<'_>> {
    match option {
        OPT_LIST => data.is_empty().then_some(Wanted::List),
        OPT_EXPORT_NAME => name_of(data).ok().map(Wanted::Export),
        OPT_INFO | OPT_GO => InfoRequest::parse(data).ok().map(|one| Wanted::Export(one.name)),
        OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => {
            ContextRequest::parse(data).ok().map(|one| Wanted::Export(one.name))
        }
        _ => None,
    }
}

pub(super) const UNKNOWN_EXPORT: Refusal = Refusal { code: REP_ERR_UNKNOWN, why: "no such export" };

pub(super) const fn unsupported(why: &'static str) -> Refusal {
    Refusal { code: REP_ERR_UNSUP, why }
}

pub(super) const fn no_data(data: &[u8]) -> Result<(), Refusal> {
    if data.is_empty() { Ok(()) } else { Err(Refusal::invalid("the option takes no data")) }
}

pub(super) fn find<'a>(catalog: &'a dyn Catalog, name: &str) -> Option<(usize, &'a ExportInfo)> {
    let index = catalog.find(name)?;
    Some((index, catalog.get(index)?))
}

/// Adds a part of the answer to `OPT_LIST`, from export `from` on, without the final reply. Returns
/// the index to continue with, or `None` after the last export.
pub(super) fn list(
    catalog: &dyn Catalog,
    from: usize,
    reply: &mut OptionReply<'_>,
) -> Option<usize> {
    let before = reply.out.len();
    for index in from..catalog.listed() {
        if reply.out.len() - before >= LIST_PART_BYTES {
            return Some(index);
        }
        if let Some((name, description)) = catalog.listing(index) {
            reply.server(name, description);
        }
    }
    None
}
