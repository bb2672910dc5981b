//! `ModelIo`: the properties of an I/O from which the timing of a simulated drive is computed.
//! Plain data.

/// Kind of an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelIoKind {
    /// Read, which transfers data to the host.
    Read,
    /// Write that completes when its data are in the write buffer.
    Write,
    /// Write that completes when its data and all earlier writes are on the medium.
    DurableWrite,
    /// Flush, which completes when all earlier writes are on the medium.
    Flush,
    /// Command that transfers no data and occupies no flash unit, such as a discard.
    Command,
}

/// Properties of an I/O from which its timing is computed.
#[derive(Debug, Clone, Copy)]
pub struct ModelIo {
    /// Kind of the I/O.
    pub kind: ModelIoKind,
    /// First sector.
    pub sector: u64,
    /// Length in sectors, 1 or more if it has data.
    pub nr_sectors: u32,
}
