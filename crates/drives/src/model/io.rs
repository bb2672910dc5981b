//! An I/O as the timing of a modelled drive sees it. Plain data.

/// What an I/O does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelIoKind {
    /// Reads pages and sends them to the host.
    Read,
    /// Takes data from the host; done when they are buffered.
    Write,
    /// Takes data from the host; done when they and all writes before are on the units.
    DurableWrite,
    /// Done when all writes before are on the units.
    Flush,
    /// A command without data.
    Command,
}

/// An I/O as the timing sees it.
#[derive(Debug, Clone, Copy)]
pub struct ModelIo {
    /// What it does.
    pub kind: ModelIoKind,
    /// First sector.
    pub sector: u64,
    /// Length in sectors, 1 or more if it has data.
    pub nr_sectors: u32,
}
