//! Exports as the server's threads see them: what clients are told, and the volume behind each.
//!
//! Made once from the configuration and shared by all threads; only sizes may grow, and each
//! negotiation tells that of its moment. A *lane* is a volume by its index:
//! exports of the same volume share one, so a thread has one channel per volume. Called by start-up
//! and by the request path.
//!
//! Invariant: every `ExportInfo` here was validated; the catalog of a listener names existing
//! exports, the default one first.

use std::sync::Arc;

use millrace_block::{Error, ErrorKind, QueueLimits, Volume};
use millrace_machine::Native;

use super::ranges::Ranges;
use super::stats::Faults;
use super::{ExportConfig, ListenConfig};
use crate::nbd::{Catalog, ExportInfo, TransmissionFlags};

/// Largest payload that is advertised, in bytes.
const BLOCK_MAX: u32 = 32 << 20;
/// Most sectors of an export: clients take its size in bytes as a file offset.
const SECTORS_MAX: u64 = i64::MAX as u64 >> 9;

/// One export.
pub(crate) struct Export {
    pub(crate) info: ExportInfo,
    /// Index of its volume in [`Exports::volumes`].
    pub(crate) lane: u32,
    /// Its drives never touch payload.
    pub(crate) no_payload: bool,
    /// What its drives failed at.
    pub(crate) faults: Faults,
}

/// All exports of a server.
pub(crate) struct Exports {
    pub(crate) list: Vec<Export>,
    pub(crate) volumes: Vec<Arc<Volume<Native>>>,
    /// What is being written of each volume, where that matters.
    pub(crate) ranges: Vec<Ranges>,
    pub(crate) catalogs: Vec<ListenerCatalog>,
}

/// The exports of one listener.
pub(crate) struct ListenerCatalog {
    /// Where it listens, for the log.
    pub(crate) address: String,
    infos: Vec<ExportInfo>,
    /// The volume of each, whose size may grow.
    volumes: Vec<Arc<Volume<Native>>>,
    /// Index in [`Exports::list`] of each.
    pub(crate) exports: Vec<usize>,
}

impl Catalog for ListenerCatalog {
    fn len(&self) -> usize {
        self.infos.len()
    }

    fn get(&self, index: usize) -> Option<&ExportInfo> {
        self.infos.get(index)
    }

    fn size_bytes(&self, index: usize) -> u64 {
        self.volumes.get(index).map_or(0, |volume| told_bytes(volume))
    }
}

impl Exports {
    /// # Errors
    /// `InvalidSetting` for a bad name, a volume too large for the protocol, or a listener that
    /// names no export or one that is not there.
    pub(crate) fn new(
        configs: Vec<ExportConfig>,
        listeners: &[ListenConfig],
        threads: u16,
    ) -> Result<Exports, Error> {
        let (mut list, mut volumes) = (Vec::new(), Vec::<Arc<Volume<Native>>>::new());
        for config in configs {
            let known = volumes.iter().position(|volume| Arc::ptr_eq(volume, &config.volume));
            let lane = known.unwrap_or(volumes.len());
            if known.is_none() {
                volumes.push(Arc::clone(&config.volume));
            }
            let no_payload = config.volume.limits().features.no_payload;
            let info = describe(config)?;
            info.validate().map_err(|error| {
                Error::new(ErrorKind::InvalidSetting, format!("export {:?}: {error}", info.name))
            })?;
            list.push(Export { info, lane: lane as u32, no_payload, faults: Faults::default() });
        }
        let catalogs = listeners.iter().map(|listener| catalog(listener, &list, &volumes));
        let catalogs = catalogs.collect::<Result<Vec<_>, Error>>()?;
        let ranges = volumes.iter().map(|_| Ranges::new(threads.into())).collect();
        Ok(Exports { list, volumes, ranges, catalogs })
    }
}

/// What clients are told of a volume's size. One that has grown beyond what they take as a file
/// offset goes on with as much as they do.
fn told_bytes(volume: &Volume<Native>) -> u64 {
    volume.capacity().min(SECTORS_MAX) << 9
}

fn catalog(
    listener: &ListenConfig,
    list: &[Export],
    volumes: &[Arc<Volume<Native>>],
) -> Result<ListenerCatalog, Error> {
    let wrong = |text: String| Error::new(ErrorKind::InvalidSetting, text);
    if listener.exports.is_empty() {
        return Err(wrong(format!("{}: no export is served there", listener.listen)));
    }
    let mut infos = Vec::<ExportInfo>::new();
    for index in &listener.exports {
        let export = list.get(*index).ok_or_else(|| {
            wrong(format!("{}: export {index} of {} there are", listener.listen, list.len()))
        })?;
        if infos.iter().any(|info| info.name == export.info.name) {
            let name = &export.info.name;
            return Err(wrong(format!("{}: two exports are called {name:?}", listener.listen)));
        }
        infos.push(export.info.clone());
    }
    let exports = listener.exports.clone();
    let of = |export: &usize| volumes[list[*export].lane as usize].clone();
    let (address, volumes) = (listener.listen.to_string(), exports.iter().map(of).collect());
    Ok(ListenerCatalog { address, infos, volumes, exports })
}

/// What clients are told of an export.
///
/// # Errors
/// `InvalidSetting` for a volume whose size in bytes clients cannot take as a file offset.
fn describe(config: ExportConfig) -> Result<ExportInfo, Error> {
    let limits = config.volume.limits();
    let block_min = limits.logical_block_size;
    let sectors = config.volume.capacity();
    if sectors > SECTORS_MAX {
        let name = &config.name;
        let text = format!(
            "export {name:?}: its volume of {sectors} sectors is too large; less than 8 EiB can be \
             exported"
        );
        return Err(Error::new(ErrorKind::InvalidSetting, text));
    }
    Ok(ExportInfo {
        name: config.name,
        description: config.description,
        size_bytes: sectors << 9,
        flags: flags_of(limits, config.read_only || limits.features.read_only),
        block_min,
        block_preferred: limits.physical_block_size.max(4096).next_power_of_two(),
        block_max: BLOCK_MAX,
    })
}

fn flags_of(limits: &QueueLimits, read_only: bool) -> TransmissionFlags {
    let mut flags = TransmissionFlags::FLUSH
        .with(TransmissionFlags::FUA)
        .with(TransmissionFlags::DF)
        .with(TransmissionFlags::MULTI_CONN)
        .with(TransmissionFlags::CACHE);
    if read_only {
        return flags.with(TransmissionFlags::READ_ONLY);
    }
    if limits.max_discard_sectors > 0 {
        flags = flags.with(TransmissionFlags::TRIM);
    }
    if limits.max_write_zeroes_sectors > 0 {
        flags = flags.with(TransmissionFlags::WRITE_ZEROES);
        // Drives that cannot discard may zero by writing.
        if limits.max_discard_sectors > 0 {
            flags = flags.with(TransmissionFlags::FAST_ZERO);
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_zeroes_are_offered_only_by_drives_that_discard() {
        let limits = |discard| QueueLimits {
            max_discard_sectors: discard,
            max_write_zeroes_sectors: 8,
            ..QueueLimits::default()
        };
        let offered = |discard, flag| flags_of(&limits(discard), false).contains(flag);
        assert!(offered(8, TransmissionFlags::FAST_ZERO));
        assert!(!offered(0, TransmissionFlags::FAST_ZERO));
        assert!(offered(0, TransmissionFlags::WRITE_ZEROES));
    }
}
