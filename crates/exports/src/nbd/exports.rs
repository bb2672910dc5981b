//! The exports of a server: the properties announced to clients, and the volume of each.
//!
//! All threads share an immutable [`ExportTable`], which is replaced as a whole when exports or
//! listeners change. A connection keeps its own [`Export`], so a replacement affects new
//! connections only. Volumes may grow; each negotiation announces the current size.
//!
//! Invariant: every `ExportInfo` here was validated. A listener's catalog names existing exports,
//! the default one first.

pub(crate) mod ranges;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use millrace_block::{Error, ErrorKind, QueueLimits, Status, Volume};
use millrace_machine::{Native, debug_fields};

use self::ranges::RangeLocks;
use super::config::{ExportConfig, ListenConfig};
use super::listen::Listen;
use super::tls::ListenTls;
use crate::faults::IoErrorCounter;
use crate::{ClientGroup, SocketAccess};
use millrace_nbd::{ExportCatalog, ExportInfo, TransmissionFlags};

/// Largest request that is advertised to clients, in bytes.
const BLOCK_MAX: u32 = 32 << 20;
/// Lower bound of the advertised preferred request size, in bytes: a page of the client.
const BLOCK_PREFERRED_MIN: u32 = 4096;
/// Size limit of an export in sectors: clients use its size in bytes as a file offset.
const SECTORS_MAX: u64 = i64::MAX as u64 >> 9;

pub(crate) struct ServedVolume {
    pub(crate) volume: Arc<Volume<Native>>,
    pub(crate) ranges: RangeLocks,
    /// True once a client has used an export of the volume. The volume may then need a flush.
    was_used: AtomicBool,
    /// Number of users of the volume:
    /// - I/O threads that have opened the volume.
    /// - Clients that were granted an on-demand export of the volume, until their I/O threads have
    ///   opened the volume.
    users: AtomicU32,
}

impl ServedVolume {
    pub(crate) fn note_used(&self) {
        self.was_used.store(true, Ordering::SeqCst);
    }

    pub(crate) fn was_used(&self) -> bool {
        self.was_used.load(Ordering::SeqCst)
    }

    /// Adds a user of the volume. A client that was granted an on-demand export counts as a user.
    /// The client's I/O thread becomes a user when it opens the volume. Only then is the client no
    /// longer a user, so the number of users does not drop to 0 in between.
    pub(crate) fn enter(&self) {
        self.users.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0
    }
}

pub(crate) struct Export {
    pub(crate) name: String,
    pub(crate) info: ExportInfo,
    pub(crate) served: Arc<ServedVolume>,
    pub(crate) no_payload: bool,
    pub(crate) faults: Arc<IoErrorCounter>,
    pub(crate) group: ClientGroup,
    /// Certificate names of the clients that may use the export. `None` admits all clients.
    pub(super) tls_allow: Option<Vec<String>>,
    /// True if the export was added on demand; no listener lists such an export.
    is_on_demand: bool,
}

impl Export {
    fn key(&self) -> ExportKey {
        ExportKey {
            name: self.name.clone(),
            volume_address: Arc::as_ptr(&self.served.volume).addr(),
            read_only: self.info.flags.contains(TransmissionFlags::READ_ONLY),
        }
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        told_bytes(&self.served.volume)
    }
}

debug_fields!(Export, name);

/// Key of an export. When exports are replaced, clients stay connected if the new export has the
/// same key.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ExportKey {
    name: String,
    volume_address: usize,
    read_only: bool,
}

#[derive(Default, Clone)]
pub(crate) struct ExportTable {
    pub(crate) list: Vec<Arc<Export>>,
    pub(crate) volumes: Vec<Arc<ServedVolume>>,
    /// Exports of each listener, by listener number. `None` for removed listeners, whose numbers
    /// are not reused.
    catalogs: Vec<Option<Arc<ListenerCatalog>>>,
    faults: HashMap<ExportKey, Arc<IoErrorCounter>>,
}

pub(crate) struct ListenerCatalog {
    pub(crate) listen: Listen,
    pub(crate) address: String,
    pub(super) exports: Vec<Arc<Export>>,
    pub(crate) access: SocketAccess,
    pub(crate) tls: Option<ListenTls>,
    pub(super) on_demand: bool,
}

impl ExportCatalog for ListenerCatalog {
    fn len(&self) -> usize {
        self.exports.len()
    }

    fn get(&self, index: usize) -> Option<&ExportInfo> {
        self.exports.get(index).map(|export| &export.info)
    }

    fn size_bytes(&self, index: usize) -> u64 {
        self.exports.get(index).map_or(0, |export| export.size_bytes())
    }
}

impl ExportTable {
    /// Builds the exports of a configuration. Fails for a bad name, a volume too large for the
    /// protocol, or a listener without an export.
    pub(crate) fn new(
        configs: Vec<ExportConfig>,
        listeners: &[ListenConfig],
        threads: u16,
    ) -> Result<ExportTable, Error> {
        ExportTable::default().followed_by(configs, listeners, threads)
    }

    /// Builds the exports of a new configuration. Reuses unchanged exports. Listeners with an
    /// unchanged address keep their numbers.
    pub(crate) fn followed_by(
        &self,
        configs: Vec<ExportConfig>,
        listeners: &[ListenConfig],
        threads: u16,
    ) -> Result<ExportTable, Error> {
        let (mut list, mut volumes) = (Vec::new(), VolumeTable::new(&self.volumes, threads));
        let mut faults = HashMap::new();
        for config in configs {
            let info = describe(&config)?;
            info.validate().map_err(|error| {
                Error::new(ErrorKind::InvalidSetting, format!("export {:?}: {error}", info.name))
            })?;
            let mut export = Export {
                name: config.name,
                info,
                served: volumes.find_or_add(&config.volume),
                no_payload: config.volume.limits().features.no_payload,
                faults: Arc::default(),
                group: config.group,
                tls_allow: config.tls_allow,
                is_on_demand: config.on_demand.is_some(),
            };
            let key = export.key();
            // Failures are added to the counter of the earlier export with the same key, if there
            // was one.
            if let Some(known) = self.faults.get(&key) {
                export.faults = Arc::clone(known);
            }
            faults.entry(key).or_insert_with(|| Arc::clone(&export.faults));
            list.push(Arc::new(export));
        }
        let mut catalogs: Vec<_> = self.catalogs.iter().map(|_| None).collect();
        for listener in listeners {
            let catalog = Some(Arc::new(catalog(listener, &list)?));
            match self.number_of(&listener.listen) {
                Some(number) => catalogs[number] = catalog,
                None => catalogs.push(catalog),
            }
        }
        Ok(ExportTable { list, volumes: volumes.list, catalogs, faults })
    }

    pub(crate) fn with(&self, config: ExportConfig, threads: u16) -> Result<ExportTable, Error> {
        let one = ExportTable::default().followed_by(vec![config], &[], threads)?;
        let mut all = self.clone();
        all.faults.extend(one.faults);
        all.list.extend(one.list);
        all.volumes.extend(one.volumes);
        Ok(all)
    }

    pub(crate) fn without(&self, name: &str) -> ExportTable {
        let mut all = self.clone();
        let is_it = |export: &Arc<Export>| export.is_on_demand && export.name == name;
        if let Some(at) = all.list.iter().position(is_it) {
            let gone = all.list.remove(at);
            all.volumes.retain(|served| !Arc::ptr_eq(served, &gone.served));
            all.faults.remove(&gone.key());
        }
        all
    }

    pub(crate) fn on_demand(&self, name: &str) -> Option<Arc<Export>> {
        let is_it = |export: &&Arc<Export>| export.is_on_demand && export.name == name;
        self.list.iter().find(is_it).cloned()
    }

    /// Returns true if the clients of the earlier export `export` may stay connected.
    pub(crate) fn keeps(&self, export: &Export) -> bool {
        self.faults.contains_key(&export.key())
    }

    pub(crate) fn number_of(&self, listen: &Listen) -> Option<usize> {
        let is_its = |one: &Option<Arc<ListenerCatalog>>| {
            one.as_ref().is_some_and(|one| one.listen == *listen)
        };
        self.catalogs.iter().position(is_its)
    }

    pub(crate) fn catalog(&self, listener: usize) -> Option<&ListenerCatalog> {
        self.catalogs.get(listener)?.as_deref()
    }

    pub(crate) fn listeners(&self) -> impl Iterator<Item = usize> {
        let catalogs = self.catalogs.iter().enumerate();
        catalogs.filter(|(_, catalog)| catalog.is_some()).map(|(number, _)| number)
    }

    #[cold]
    pub(crate) fn note_fault(&self, served: &Arc<ServedVolume>, status: Status) {
        let mut exports = self.list.iter();
        if let Some(export) = exports.find(|export| Arc::ptr_eq(&export.served, served)) {
            export.faults.note(status);
        }
    }
}

/// Table of volumes by address, so that exports of one volume share its `ServedVolume`.
struct VolumeTable {
    list: Vec<Arc<ServedVolume>>,
    known: HashMap<*const Volume<Native>, (Arc<ServedVolume>, bool)>,
    threads: u16,
}

impl VolumeTable {
    fn new(before: &[Arc<ServedVolume>], threads: u16) -> VolumeTable {
        let known =
            before.iter().map(|one| (Arc::as_ptr(&one.volume), (Arc::clone(one), false))).collect();
        VolumeTable { list: Vec::new(), known, threads }
    }

    fn find_or_add(&mut self, volume: &Arc<Volume<Native>>) -> Arc<ServedVolume> {
        let (served, is_listed) = self.known.entry(Arc::as_ptr(volume)).or_insert_with(|| {
            let served = ServedVolume {
                volume: Arc::clone(volume),
                ranges: RangeLocks::new(self.threads.into()),
                was_used: AtomicBool::new(false),
                users: AtomicU32::new(0),
            };
            (Arc::new(served), false)
        });
        if !std::mem::replace(is_listed, true) {
            self.list.push(Arc::clone(served));
        }
        Arc::clone(served)
    }
}

/// Returns the size in bytes to announce to clients, limited to the range of a file offset.
fn told_bytes(volume: &Volume<Native>) -> u64 {
    volume.capacity().min(SECTORS_MAX) << 9
}

fn catalog(listener: &ListenConfig, list: &[Arc<Export>]) -> Result<ListenerCatalog, Error> {
    let wrong = |text: String| Error::new(ErrorKind::InvalidSetting, text);
    if listener.exports.is_empty() && !listener.on_demand {
        return Err(wrong(format!("{}: no export is served there", listener.listen)));
    }
    let (mut exports, mut names) = (Vec::<Arc<Export>>::new(), HashSet::new());
    for index in &listener.exports {
        let export = list.get(*index).ok_or_else(|| {
            wrong(format!(
                "{}: there is no export {index}; the number of exports is {}",
                listener.listen,
                list.len()
            ))
        })?;
        let name = export.info.name.as_str();
        if !names.insert(name) {
            return Err(wrong(format!("{}: two exports are called {name:?}", listener.listen)));
        }
        exports.push(Arc::clone(export));
    }
    let (access, tls) = (listener.access.clone(), listener.tls.clone());
    let (listen, address) = (listener.listen.clone(), listener.listen.to_string());
    Ok(ListenerCatalog { listen, address, exports, access, tls, on_demand: listener.on_demand })
}

/// Describes an export to clients. Fails if the volume is too large for a file offset.
fn describe(config: &ExportConfig) -> Result<ExportInfo, Error> {
    let limits = config.volume.limits();
    let sectors = config.volume.capacity();
    if sectors > SECTORS_MAX {
        let name = &config.name;
        let text = format!(
            "export {name:?}: its volume of {sectors} sectors is too large; less than 8 EiB can be \
             exported"
        );
        return Err(Error::new(ErrorKind::InvalidSetting, text));
    }
    let flags = TransmissionFlags::FLUSH
        .with(TransmissionFlags::FUA)
        .with(TransmissionFlags::DF)
        .with(TransmissionFlags::MULTI_CONN)
        .with(TransmissionFlags::CACHE);
    let changes = match config.read_only || limits.features.read_only {
        true => TransmissionFlags::READ_ONLY,
        false => change_flags(limits),
    };
    Ok(ExportInfo {
        name: config.on_demand.as_ref().unwrap_or(&config.name).clone(),
        description: config.description.clone(),
        size_bytes: sectors << 9,
        flags: flags.with(changes),
        block_min: limits.logical_block_size,
        block_preferred: limits.physical_block_size.max(BLOCK_PREFERRED_MIN).next_power_of_two(),
        block_max: BLOCK_MAX,
    })
}

/// Returns the transmission flags for the discard and zeroing commands of a writable volume.
fn change_flags(limits: &QueueLimits) -> TransmissionFlags {
    let mut flags = TransmissionFlags::new();
    if limits.max_discard_sectors > 0 {
        flags = flags.with(TransmissionFlags::TRIM);
    }
    if limits.max_write_zeroes_sectors > 0 {
        flags = flags.with(TransmissionFlags::WRITE_ZEROES);
        // A drive that cannot discard may zero a range by writing zeroes, which is not fast.
        if limits.max_discard_sectors > 0 {
            flags = flags.with(TransmissionFlags::FAST_ZERO);
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn fast_zeroes_are_offered_only_by_drives_that_discard() {
        let limits = |discard| QueueLimits {
            max_discard_sectors: discard,
            max_write_zeroes_sectors: 8,
            ..QueueLimits::default()
        };
        let offered = |discard, flag| change_flags(&limits(discard)).contains(flag);
        assert!(offered(8, TransmissionFlags::FAST_ZERO));
        assert!(!offered(0, TransmissionFlags::FAST_ZERO));
        assert!(offered(0, TransmissionFlags::WRITE_ZEROES));
    }

    fn config(spec: &str, read_only: bool) -> ExportConfig {
        let volume = crate::nbd::tests::volume(spec, 1, Duration::ZERO);
        ExportConfig { read_only, ..ExportConfig::new("x", volume) }
    }

    #[test]
    fn a_read_only_export_offers_nothing_that_changes_it() {
        let changes = [
            TransmissionFlags::TRIM,
            TransmissionFlags::WRITE_ZEROES,
            TransmissionFlags::FAST_ZERO,
        ];
        for read_only in [false, true] {
            let info = describe(&config("ram:size=1m", read_only)).unwrap();
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
        assert!(changes.iter().all(|flag| !change_flags(&limits).contains(*flag)));
    }

    #[test]
    fn exports_below_8_eib_are_described_and_larger_ones_refused() {
        const MOST: u64 = (1 << 63) - 512;
        let info = describe(&config(&format!("null:size={MOST}"), false)).unwrap();
        assert_eq!(info.size_bytes, MOST);
        assert!(describe(&config(&format!("null:size={}", 1u64 << 63), false)).is_err());
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
        let exports = ExportTable::new(configs.into(), &listeners, 1).unwrap();
        let catalog = exports.catalog(0).unwrap();
        assert_eq!(catalog.len(), 2);
        let names = [0, 1, 2].map(|index| catalog.get(index).map(|info| info.name.as_str()));
        assert_eq!(names, [Some("c"), Some("b"), None]);
        assert_eq!([0, 1, 2].map(|index| catalog.size_bytes(index)), [1 << 20, 2 << 20, 0]);
        assert_eq!(
            ["", "b", "c", "a"].map(|name| catalog.find(name)),
            [Some(0), Some(1), Some(0), None]
        );
        assert_eq!(exports.volumes.len(), 3);
    }
}
