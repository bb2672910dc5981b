//! Exports as the server's threads see them: what clients are told, and the volume behind each.
//!
//! Made once from the configuration and shared by all threads; only sizes may grow, and each
//! negotiation tells that of its moment. A *lane* is a volume by its index:
//! exports of the same volume share one, so a thread has one channel per volume. Called by start-up
//! and by the request path.
//!
//! Invariant: every `ExportInfo` here was validated; the catalog of a listener names existing
//! exports, the default one first.

pub(crate) mod ranges;

use std::cell::RefCell;
use std::sync::Arc;

use millrace_block::{Error, ErrorKind, QueueLimits, Status, Volume};
use millrace_machine::Native;

use self::ranges::Ranges;
use super::config::{ExportConfig, ListenConfig};
use super::tls::ListenTls;
use crate::faults::Faults;
use crate::{Allow, ClientGroup};
use millrace_nbd::{Catalog, ExportInfo, TransmissionFlags};
use millrace_tls::PeerNames;

/// Largest payload that is advertised, in bytes.
const BLOCK_MAX: u32 = 32 << 20;
/// Smallest preferred size of a request that is advertised, in bytes: a page of clients.
const BLOCK_PREFERRED_MIN: u32 = 4096;
/// Most sectors of an export: clients take its size in bytes as a file offset.
const SECTORS_MAX: u64 = i64::MAX as u64 >> 9;

/// One export.
pub(crate) struct Export {
    pub(crate) info: ExportInfo,
    /// Index of its volume in [`Exports::volumes`].
    pub(crate) lane: u32,
    /// The volume's drives never touch payload.
    pub(crate) no_payload: bool,
    /// What the volume's drives failed at.
    pub(crate) faults: Faults,
    /// The group of its clients.
    pub(crate) group: ClientGroup,
    /// Names of those that may use it, if not everybody may.
    tls_allow: Option<Vec<String>>,
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
    /// The listener's address, for the log.
    pub(crate) address: String,
    infos: Vec<ExportInfo>,
    /// The volume of each, whose size may grow.
    volumes: Vec<Arc<Volume<Native>>>,
    /// Index in [`Exports::list`] of each.
    pub(crate) exports: Vec<usize>,
    /// Users and groups whose clients are let in; none: everybody who reaches it.
    pub(crate) allow: Option<Allow>,
    /// TLS for its clients, if there is any.
    pub(crate) tls: Option<ListenTls>,
}

/// The exports of a listener that one client may see.
pub(crate) struct Visible<'a> {
    catalog: &'a ListenerCatalog,
    list: &'a [Export],
    /// The names in the client's certificate, if it showed one.
    peer: Option<&'a PeerNames>,
    /// Why the client was refused the export that it named last, if it was.
    refused: RefCell<Option<String>>,
}

impl Visible<'_> {
    /// Why the client was refused an export that is there, if it was.
    pub(crate) fn take_refused(self) -> Option<String> {
        self.refused.into_inner()
    }

    fn may_use(&self, index: usize) -> bool {
        let export = self.catalog.exports.get(index).and_then(|export| self.list.get(*export));
        match export.and_then(|export| export.tls_allow.as_ref()) {
            None => true,
            Some(names) => self.peer.is_some_and(|peer| names.iter().any(|name| peer.has(name))),
        }
    }
}

impl Catalog for Visible<'_> {
    fn len(&self) -> usize {
        self.catalog.len()
    }

    fn get(&self, index: usize) -> Option<&ExportInfo> {
        self.catalog.get(index).filter(|_| self.may_use(index))
    }

    fn size_bytes(&self, index: usize) -> u64 {
        self.catalog.size_bytes(index)
    }

    /// As it is in the catalog; the empty name is the first export that the client may use.
    fn find(&self, name: &str) -> Option<usize> {
        let is_it = |info: &ExportInfo| name.is_empty() || info.name == name;
        let found = (0..self.len()).find(|index| self.get(*index).is_some_and(is_it));
        if found.is_none() && self.catalog.find(name).is_some() {
            let who = self.peer.map_or_else(
                || "a client without a certificate".to_owned(),
                |peer| peer.to_string(),
            );
            let why = format!("{who} may not use export {name:?}: see its tls-allow");
            *self.refused.borrow_mut() = Some(why);
        }
        found
    }
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
            let group = config.group.clone();
            let tls_allow = config.tls_allow.clone();
            let info = describe(config)?;
            info.validate().map_err(|error| {
                Error::new(ErrorKind::InvalidSetting, format!("export {:?}: {error}", info.name))
            })?;
            let (lane, faults) = (lane as u32, Faults::default());
            list.push(Export { info, lane, no_payload, faults, group, tls_allow });
        }
        let catalogs = listeners.iter().map(|listener| catalog(listener, &list, &volumes));
        let catalogs = catalogs.collect::<Result<Vec<_>, Error>>()?;
        let ranges = volumes.iter().map(|_| Ranges::new(threads.into())).collect();
        Ok(Exports { list, volumes, ranges, catalogs })
    }

    /// What a client sees of a listener's exports; `peer` are the names in its certificate.
    pub(crate) fn visible<'a>(
        &'a self,
        listener: usize,
        peer: Option<&'a PeerNames>,
    ) -> Visible<'a> {
        let refused = RefCell::default();
        Visible { catalog: &self.catalogs[listener], list: &self.list, peer, refused }
    }

    /// A drive failed at a request whose client is gone: it counts for the volume's first export.
    #[cold]
    pub(crate) fn note_fault(&self, lane: usize, status: Status) {
        let mut exports = self.list.iter();
        if let Some(export) = exports.find(|export| export.lane as usize == lane) {
            export.faults.note(status);
        }
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
    let (allow, tls) = (listener.access.allow.clone(), listener.tls.clone());
    Ok(ListenerCatalog { address, infos, volumes, exports, allow, tls })
}

/// What clients may do with an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    ReadOnly,
    ReadWrite,
}

/// What clients are told of an export.
///
/// # Errors
/// `InvalidSetting` for a volume whose size in bytes clients cannot take as a file offset.
fn describe(config: ExportConfig) -> Result<ExportInfo, Error> {
    let limits = config.volume.limits();
    let block_min = limits.logical_block_size;
    let access = match config.read_only || limits.features.read_only {
        true => Access::ReadOnly,
        false => Access::ReadWrite,
    };
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
        flags: flags_of(limits, access),
        block_min,
        block_preferred: limits.physical_block_size.max(BLOCK_PREFERRED_MIN).next_power_of_two(),
        block_max: BLOCK_MAX,
    })
}

fn flags_of(limits: &QueueLimits, access: Access) -> TransmissionFlags {
    let mut flags = TransmissionFlags::FLUSH
        .with(TransmissionFlags::FUA)
        .with(TransmissionFlags::DF)
        .with(TransmissionFlags::MULTI_CONN)
        .with(TransmissionFlags::CACHE);
    if access == Access::ReadOnly {
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
        let offered = |discard, flag| flags_of(&limits(discard), Access::ReadWrite).contains(flag);
        assert!(offered(8, TransmissionFlags::FAST_ZERO));
        assert!(!offered(0, TransmissionFlags::FAST_ZERO));
        assert!(offered(0, TransmissionFlags::WRITE_ZEROES));
    }

    fn config(spec: &str, read_only: bool) -> ExportConfig {
        let volume = crate::nbd::tests::volume(spec, 1, 0);
        let (name, description) = ("x".to_owned(), String::new());
        ExportConfig {
            name,
            description,
            volume,
            read_only,
            group: ClientGroup::default(),
            tls_allow: None,
        }
    }

    #[test]
    fn a_read_only_export_offers_nothing_that_changes_it() {
        let changes = [
            TransmissionFlags::TRIM,
            TransmissionFlags::WRITE_ZEROES,
            TransmissionFlags::FAST_ZERO,
        ];
        for read_only in [false, true] {
            let info = describe(config("ram:size=1m", read_only)).unwrap();
            assert_eq!(info.flags.contains(TransmissionFlags::READ_ONLY), read_only);
            assert!(changes.iter().all(|flag| info.flags.contains(*flag) != read_only));
            assert!(info.flags.contains(TransmissionFlags::MULTI_CONN));
            assert_eq!(
                (info.size_bytes, info.block_min, info.block_preferred),
                (1 << 20, 512, 4096)
            );
        }
        let limits = QueueLimits {
            max_discard_sectors: 0,
            max_write_zeroes_sectors: 0,
            ..QueueLimits::default()
        };
        assert!(changes.iter().all(|flag| !flags_of(&limits, Access::ReadWrite).contains(*flag)));
    }

    #[test]
    fn exports_of_less_than_8_eib_are_described_and_larger_ones_refused() {
        const MOST: u64 = (1 << 63) - 512;
        let info = describe(config(&format!("null:size={MOST}"), false)).unwrap();
        assert_eq!(info.size_bytes, MOST);
        assert!(describe(config(&format!("null:size={}", 1u64 << 63), false)).is_err());
        let told = |size: u64| told_bytes(&config(&format!("null:size={size}"), false).volume);
        assert_eq!([1 << 20, MOST, 1 << 63].map(told), [1 << 20, MOST, MOST]);
    }

    #[test]
    fn a_listener_serves_its_exports_in_its_own_order() {
        let configs = ["a", "b", "c"].map(|name| {
            let size = if name == "b" { "2m" } else { "1m" };
            ExportConfig { name: name.to_owned(), ..config(&format!("null:size={size}"), false) }
        });
        let listen = crate::nbd::Listen::Unix("/s".into());
        let listeners = [ListenConfig::new(listen, vec![2, 1])];
        let exports = Exports::new(configs.into(), &listeners, 1).unwrap();
        let catalog = &exports.catalogs[0];
        assert_eq!((catalog.len(), &catalog.exports[..]), (2, &[2, 1][..]));
        let names = [0, 1, 2].map(|index| catalog.get(index).map(|info| info.name.as_str()));
        assert_eq!(names, [Some("c"), Some("b"), None]);
        assert_eq!([0, 1, 2].map(|index| catalog.size_bytes(index)), [1 << 20, 2 << 20, 0]);
        assert_eq!(
            ["", "b", "c", "a"].map(|name| catalog.find(name)),
            [Some(0), Some(1), Some(0), None]
        );
        let lanes: Vec<u32> = exports.list.iter().map(|export| export.lane).collect();
        assert_eq!((lanes, exports.ranges.len()), (vec![0, 1, 2], 3));
    }
}
