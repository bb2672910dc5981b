//! Option data of the negotiation, and the replies to options.
//!
//! This module owns the layout of the data after an option's header (names, information requests,
//! context queries) and of the reply packets. The server's handshake calls it.
//!
//! Invariants: a parser refuses data with bytes left after the last field. Nothing is allocated for
//! a client's data, so lengths that the client chooses cost nothing. Specification: "Option types",
//! "Option reply types", "The `base:` metadata namespace".

use crate::export::{ExportCatalog, ExportInfo, WantedExport};
use crate::wire::{
    BASE_ALLOCATION, OPT_EXPORT_NAME, OPT_GO, OPT_INFO, OPT_LIST, OPT_LIST_META_CONTEXT,
    OPT_SET_META_CONTEXT, OPTION_REPLY_MAGIC, REP_ERR_INVALID, REP_ERR_UNKNOWN, REP_META_CONTEXT,
    Reader, STRING_BYTES_MAX, string,
};

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
    /// Requested information, as big-endian `INFO_*` numbers.
    kinds: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    pub fn parse(data: &'a [u8]) -> Result<Self, Refusal> {
        let mut reader = Reader::new(data);
        let short =
            Refusal::invalid("the name or the information requests exceed the option's data");
        let name = name_of(reader.counted().ok_or(short)?)?;
        let count = reader.u16().ok_or(short)?;
        let kinds = reader.bytes(2 * usize::from(count)).ok_or(short)?;
        if !reader.is_empty() {
            return Err(Refusal::invalid("there are extra bytes after the information requests"));
        }
        Ok(InfoRequest { name, kinds })
    }

    pub fn wants(&self, kind: u16) -> bool {
        self.kinds.chunks_exact(2).any(|known| known == kind.to_be_bytes())
    }
}

/// Data of `OPT_LIST_META_CONTEXT` and `OPT_SET_META_CONTEXT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextRequest<'a> {
    /// Name of the export, empty for the default one.
    pub name: &'a str,
    pub queries: u32,
    pub exact: bool,
    /// True if one of the queries is `base:`, a wildcard for all contexts of the namespace. The
    /// wildcard is valid only in `OPT_LIST_META_CONTEXT`.
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
    pub out: &'a mut Vec<u8>,
    pub option: u32,
}

impl OptionReply<'_> {
    pub fn packet(&mut self, kind: u32, parts: &[&[u8]]) {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let len = u32::try_from(bytes).expect("an option reply must be shorter than 4 GiB");
        self.out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        for number in [self.option, kind, len] {
            self.out.extend_from_slice(&number.to_be_bytes());
        }
        parts.iter().for_each(|part| self.out.extend_from_slice(part));
    }

    pub fn base_allocation(&mut self, id: u32) {
        self.packet(REP_META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()]);
    }
}

/// Returns the export that an option names, or [`WantedExport::List`] for the list option. Returns
/// `None` for other options and for malformed data.
pub(super) fn wanted(option: u32, data: &[u8]) -> Option<WantedExport<'_>> {
    match option {
        OPT_LIST => data.is_empty().then_some(WantedExport::List),
        OPT_EXPORT_NAME => name_of(data).ok().map(WantedExport::Export),
        OPT_INFO | OPT_GO => {
            InfoRequest::parse(data).ok().map(|one| WantedExport::Export(one.name))
        }
        OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => {
            ContextRequest::parse(data).ok().map(|one| WantedExport::Export(one.name))
        }
        _ => None,
    }
}

pub(super) const UNKNOWN_EXPORT: Refusal = Refusal { code: REP_ERR_UNKNOWN, why: "no such export" };

pub(super) const fn no_data(data: &[u8]) -> Result<(), Refusal> {
    if data.is_empty() { Ok(()) } else { Err(Refusal::invalid("the option takes no data")) }
}

pub(super) fn find<'a>(
    catalog: &'a dyn ExportCatalog,
    name: &str,
) -> Option<(usize, &'a ExportInfo)> {
    let index = catalog.find(name)?;
    Some((index, catalog.get(index)?))
}
