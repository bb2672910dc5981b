//! Describes the exports that a server offers, their flags, and the session that a negotiation
//! results in.
//!
//! These types connect the negotiation with the transmission phase. The server's configuration
//! creates them; the handshake, the request checks and the reply encoders read them.
//!
//! Invariants: bit 0 of [`TransmissionFlags`] is always set. [`TransmissionFlags::negotiated`]
//! never shows a feature that the client cannot use. The empty name means the first export.
//! Specification: "Transmission flags", "Block size constraints".

use crate::error::ProtocolError;
use crate::wire::STRING_BYTES_MAX;

/// Transmission flags: 16 bits that announce the features of an export to a client. Bit 0 is always
/// set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransmissionFlags(u16);

impl TransmissionFlags {
    /// Writes are refused.
    pub const READ_ONLY: Self = Self(1 | 1 << 1);
    /// The flush command is supported.
    pub const FLUSH: Self = Self(1 | 1 << 2);
    /// The FUA command flag is supported.
    pub const FUA: Self = Self(1 | 1 << 3);
    /// The medium rotates, so seeks are slow.
    pub const ROTATIONAL: Self = Self(1 | 1 << 4);
    /// The trim command is supported.
    pub const TRIM: Self = Self(1 | 1 << 5);
    /// The write-zeroes command is supported.
    pub const WRITE_ZEROES: Self = Self(1 | 1 << 6);
    /// The don't-fragment flag of reads is supported.
    pub const DF: Self = Self(1 | 1 << 7);
    /// Flushes cover the writes of every connection to the export.
    pub const MULTI_CONN: Self = Self(1 | 1 << 8);
    /// The cache command is supported.
    pub const CACHE: Self = Self(1 | 1 << 10);
    /// The fast-zero flag of write-zeroes is supported.
    pub const FAST_ZERO: Self = Self(1 | 1 << 11);

    /// Returns flags without any feature.
    pub const fn new() -> Self {
        Self(1)
    }

    /// Returns flags from the wire. Bit 0 is set whatever the peer sent.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits | 1)
    }

    /// Returns the transmission flags as the 16 bits that the protocol sends.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Returns these flags plus those of `other`.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns these flags without those of `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0 | 1)
    }

    /// Returns true if all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the flags to announce to a client with this reply style. The don't-fragment flag
    /// needs replies in chunks, and fast zero needs write-zeroes.
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

/// Description of an export for the negotiation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// Name by which clients select the export: at most 4096 bytes, without NUL.
    pub name: String,
    /// Description for people, with the same limits as the name. It may be empty.
    pub description: String,
    /// Size in bytes when this description was made; see [`ExportCatalog::size_bytes`] for the
    /// current size.
    pub size_bytes: u64,
    /// Features of the export, before [`TransmissionFlags::negotiated`] reduces them for a client.
    pub flags: TransmissionFlags,
    /// Smallest request and its alignment: a power of two, 1 to 65536 bytes.
    pub block_min: u32,
    /// Request size that avoids read-modify-write: a power of two, at least 512 and `block_min`, in
    /// bytes.
    pub block_preferred: u32,
    /// Largest payload of a request in bytes: a multiple of `block_min`, or `u32::MAX` for no
    /// limit.
    pub block_max: u32,
}

impl ExportInfo {
    /// Checks the limits of the specification.
    ///
    /// # Errors
    /// [`ProtocolError::BadField`] naming the first invalid field.
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

/// Export, or list of exports, that an option needs from the [`ExportCatalog`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantedExport<'a> {
    /// The option asks for the export of this name.
    Export(&'a str),
    /// The option asks for the names of all exports.
    List,
}

/// The exports of a server, in a fixed order.
///
/// The order must not change during a negotiation, because a [`Session`] holds an index.
pub trait ExportCatalog {
    /// Returns the number of exports.
    fn len(&self) -> usize;

    /// Returns true if there are no exports.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the export at `index`, or `None` if `index` is not below [`ExportCatalog::len`].
    fn get(&self, index: usize) -> Option<&ExportInfo>;

    /// Returns the current size in bytes of the export at `index`, or 0 if there is no such export.
    /// The volume may have grown since the export's description was made. A session keeps the size
    /// that its client was told, because the protocol has no message to change it.
    fn size_bytes(&self, index: usize) -> u64 {
        self.get(index).map_or(0, |export| export.size_bytes)
    }

    /// Returns the index of the export `name`. The empty name means the first export.
    fn find(&self, name: &str) -> Option<usize> {
        if name.is_empty() && !self.is_empty() {
            return Some(0);
        }
        (0..self.len()).find(|&index| self.get(index).is_some_and(|export| export.name == name))
    }

    /// Returns true if the negotiation has to wait because the catalog is still looking for
    /// `wanted`. The caller then asks again later; the catalog must have an answer eventually.
    fn is_pending(&self, wanted: WantedExport<'_>) -> bool {
        let _ = wanted;
        false
    }

    /// Returns the reason why the client may not use the export `name` although it exists. `None`
    /// if there is no such reason.
    fn why_refused(&self, name: &str) -> Option<String> {
        let _ = name;
        None
    }

    /// Returns the number of exports that `OPT_LIST` lists. The number can exceed
    /// [`ExportCatalog::len`] if exports are opened on demand.
    fn listed(&self) -> usize {
        self.len()
    }

    /// Returns name and description of an export for `OPT_LIST`, or `None` if this client may not
    /// see the export.
    fn listing(&self, index: usize) -> Option<(&str, &str)> {
        self.get(index).map(|export| (export.name.as_str(), export.description.as_str()))
    }
}

impl ExportCatalog for Vec<ExportInfo> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn get(&self, index: usize) -> Option<&ExportInfo> {
        self.as_slice().get(index)
    }
}

/// Header format of the transmission phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReplyStyle {
    /// Simple replies. A request header has 28 bytes, and a reply header has 16 bytes.
    #[default]
    Simple,
    /// Structured replies. A request header has 28 bytes. A reply consists of chunks with 20-byte
    /// headers.
    Structured,
    /// Extended headers with 64-bit lengths. A request header has 32 bytes. A reply consists of
    /// chunks with 32-byte headers.
    Extended,
}

/// Result of a negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Index of the export in the catalog.
    pub export: usize,
    /// Header format of requests and replies.
    pub style: ReplyStyle,
    /// ID of `base:allocation`, if the client selected it for this export.
    pub base_allocation: Option<u32>,
    /// True if the client asked the server to omit the zeroes after the `OPT_EXPORT_NAME` reply.
    pub no_zeroes: bool,
    /// True if the client requested block sizes. Otherwise it may use any offset.
    pub block_sizes: bool,
}
