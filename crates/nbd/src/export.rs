//! What a server offers and what a client agreed to: exports, their flags, the session.
//!
//! Owns the vocabulary that the negotiation hands to the transmission phase. Built by whoever
//! configures the server, read by the handshake, the request checks and the reply encoders.
//!
//! Invariants: bit 0 of [`TransmissionFlags`] is always set; [`TransmissionFlags::negotiated`]
//! never shows a feature that the client cannot use; the empty name means the first export.
//! Specification: "Transmission flags", "Block size constraints".

use crate::error::ProtocolError;
use crate::wire::STRING_BYTES_MAX;

/// The 16 flags that tell a client what an export can do. Bit 0 is always set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransmissionFlags(u16);

impl TransmissionFlags {
    /// Writes are refused.
    pub const READ_ONLY: Self = Self(1 | 1 << 1);
    /// The flush command works.
    pub const FLUSH: Self = Self(1 | 1 << 2);
    /// The FUA command flag works.
    pub const FUA: Self = Self(1 | 1 << 3);
    /// Seeks cost time.
    pub const ROTATIONAL: Self = Self(1 | 1 << 4);
    /// The trim command works.
    pub const TRIM: Self = Self(1 | 1 << 5);
    /// The write-zeroes command works.
    pub const WRITE_ZEROES: Self = Self(1 | 1 << 6);
    /// The don't-fragment flag of reads works.
    pub const DF: Self = Self(1 | 1 << 7);
    /// Flushes cover the writes of every connection to the export.
    pub const MULTI_CONN: Self = Self(1 | 1 << 8);
    /// The cache command works.
    pub const CACHE: Self = Self(1 | 1 << 10);
    /// The fast-zero flag of write-zeroes works.
    pub const FAST_ZERO: Self = Self(1 | 1 << 11);

    /// No feature at all.
    pub const fn new() -> Self {
        Self(1)
    }

    /// Flags from the wire; bit 0 is set whatever the peer sent.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits | 1)
    }

    /// The 16 bits on the wire.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// These flags and those of `other`.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These flags without those of `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0 | 1)
    }

    /// Whether all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What may be shown to a client with this reply style: DF needs chunks, and fast zero needs
    /// write-zeroes.
    pub const fn negotiated(self, style: ReplyStyle) -> Self {
        let mut flags = self;
        if matches!(style, ReplyStyle::Simple) {
            flags = flags.without(Self::DF);
        }
        if !flags.contains(Self::WRITE_ZEROES) {
            flags = flags.without(Self::FAST_ZERO);
        }
        flags
    }
}

impl Default for TransmissionFlags {
    fn default() -> Self {
        Self::new()
    }
}

/// One export as the negotiation describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// The name clients ask for: at most 4096 bytes, without NUL.
    pub name: String,
    /// Text for people, possibly empty; same bounds as the name.
    pub description: String,
    /// Size in bytes when it was described; [`Catalog::size_bytes`] is that of this moment.
    pub size_bytes: u64,
    /// What the export can do; [`TransmissionFlags::negotiated`] is applied per client.
    pub flags: TransmissionFlags,
    /// Smallest request and its alignment: a power of two, 1 to 65536 bytes.
    pub block_min: u32,
    /// Request size that avoids read-modify-write: a power of two, at least 512 and `block_min`.
    pub block_preferred: u32,
    /// Largest payload of one request: a multiple of `block_min`, or `u32::MAX` for no limit.
    pub block_max: u32,
}

impl ExportInfo {
    /// Checks the bounds that the specification puts on what a server may say.
    ///
    /// # Errors
    ///
    /// [`ProtocolError::BadField`] naming the first field that is out of its bounds.
    pub fn validate(&self) -> Result<(), ProtocolError> {
        for (what, text) in [("export name", &self.name), ("description", &self.description)] {
            if text.len() > STRING_BYTES_MAX || text.contains('\0') {
                return Err(ProtocolError::BadField { what, value: text.len() as u64 });
            }
        }
        let (min, preferred, max) = (self.block_min, self.block_preferred, self.block_max);
        let bad = |what, value: u32| Err(ProtocolError::BadField { what, value: value.into() });
        if !min.is_power_of_two() || min > 65536 {
            return bad("minimum block size", min);
        }
        if !preferred.is_power_of_two() || preferred < min.max(512) {
            return bad("preferred block size", preferred);
        }
        let whole = max == u32::MAX || max.is_multiple_of(min);
        if !whole || u64::from(max) < u64::from(preferred).min(self.size_bytes) || max < min {
            return bad("maximum block size", max);
        }
        Ok(())
    }
}

/// An option's demand on a catalog: one export, or the names of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// The export of this name.
    Export(&'a str),
    /// The names of all exports.
    List,
}

/// The exports of a server, in a fixed order.
///
/// The order must not change while a negotiation is under way: a [`Session`] holds an index.
pub trait Catalog {
    /// How many exports there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The export at `index`, `None` from [`Catalog::len`] on.
    fn get(&self, index: usize) -> Option<&ExportInfo>;

    /// Size in bytes of the export at `index` at this moment, 0 from [`Catalog::len`] on. It may
    /// have grown since it was described; a session keeps what it was told, for which the protocol
    /// has no second message.
    fn size_bytes(&self, index: usize) -> u64 {
        self.get(index).map_or(0, |export| export.size_bytes)
    }

    /// Index of the export called `name`; the empty name is the first export.
    fn find(&self, name: &str) -> Option<usize> {
        if name.is_empty() && !self.is_empty() {
            return Some(0);
        }
        (0..self.len()).find(|&index| self.get(index).is_some_and(|export| export.name == name))
    }

    /// Returns true if the negotiation has to wait: the catalog is still finding out about what is
    /// wanted. It is then asked again, and must have an answer in the end.
    fn is_pending(&self, wanted: Wanted<'_>) -> bool {
        let _ = wanted;
        false
    }

    /// Why the client cannot have the export of a name that `find` did not find, although there is
    /// one.
    fn why_refused(&self, name: &str) -> Option<String> {
        let _ = name;
        None
    }

    /// How many exports a list has. All of them are in the catalog, unless it opens exports on
    /// demand.
    fn listed(&self) -> usize {
        self.len()
    }

    /// Name and description of an export of the list; `None` for one that this client may not see.
    fn listing(&self, index: usize) -> Option<(&str, &str)> {
        self.get(index).map(|export| (export.name.as_str(), export.description.as_str()))
    }
}

impl Catalog for Vec<ExportInfo> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn get(&self, index: usize) -> Option<&ExportInfo> {
        self.as_slice().get(index)
    }
}

/// Which headers the messages of a transmission have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReplyStyle {
    /// 28-byte requests, 16-byte replies.
    #[default]
    Simple,
    /// 28-byte requests, replies in 20-byte chunks.
    Structured,
    /// 32-byte requests, replies in 32-byte chunks, 64-bit lengths.
    Extended,
}

/// What a finished negotiation agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Index of the export in the catalog.
    pub export: usize,
    /// Whether structured replies were negotiated.
    pub structured: bool,
    /// Id of `base:allocation` when the client selected it for this export.
    pub base_allocation: Option<u32>,
    /// Whether the client asked for no zeroes after `OPT_EXPORT_NAME`.
    pub no_zeroes: bool,
    /// Whether extended headers were negotiated; they win over structured replies.
    pub extended: bool,
    /// Whether the client asked for the block sizes; one that did not may use any offset.
    pub block_sizes: bool,
}

impl Session {
    /// The headers of this session.
    pub const fn style(&self) -> ReplyStyle {
        match (self.extended, self.structured) {
            (true, _) => ReplyStyle::Extended,
            (false, true) => ReplyStyle::Structured,
            (false, false) => ReplyStyle::Simple,
        }
    }
}
