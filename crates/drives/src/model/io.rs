//! `ModelIo`: the properties of an I/O from which the timing of a simulated drive is computed.
//! Plain data.

/// Kind of an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelIoKind {
    /// Reads pages and sends them to the host.
    Read,
    /// Takes data from the host; completes when the data are in the buffer.
    Write,
    /// Takes data from the host; completes when its data and all earlier writes are on the units.
    DurableWrite,
    /// Completes when all earlier writes are on the units.
    Flush,
    /// Transfers no data and occupies no unit, such as a discard.
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
