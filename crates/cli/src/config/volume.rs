//! `[[volume]]`: how drives are laid out and served, and the cache over them.
//!
//! Owns the table of keys, of which those of queues are drive.rs's and those of the cache
//! millrace-console's. Called by sections.rs; plan.rs finds the drives by their names.

use millrace::{
    CHUNK_SECTORS, CacheConfig, DriveOptions, Stack, VolumeConfig, default_layout, default_serving,
};
use millrace_block::Layout;
use millrace_console::cache;

use super::document::{Key, Section, Value, key, list};
use super::drive::read_queues;
use super::key_lines::KeyLines;
use super::problem::Problems;
use super::words::{self, LayoutWord};

/// A volume whose drives are names.
#[derive(Default)]
pub struct VolumeDraft {
    /// Its settings, without drives.
    pub config: VolumeConfig,
    /// Names of its drives.
    pub drives: Vec<String>,
    /// Queues of drives that say nothing themselves.
    pub queues: DriveOptions,
}

pub const LAYOUT: [Key<VolumeDraft>; 3] = [
    key("layout", |volume, value| {
        value.word(&mut volume.config.layout, |text| match words::layout(text)? {
            LayoutWord::Linear => Ok(Layout::Linear),
            LayoutWord::Stripe => Ok(Layout::Stripe { chunk_sectors: CHUNK_SECTORS }),
        });
    }),
    key("chunk", |volume, value| {
        let layout = volume.config.layout;
        value.word(&mut volume.config.layout, |text| match layout {
            Layout::Stripe { .. } => {
                Ok(Layout::Stripe { chunk_sectors: words::chunk_sectors(text)? })
            }
            Layout::Linear => Err("a linear volume has none; remove it, or use layout = \
                                   \"stripe\""
                .to_owned()),
        });
    }),
    list("drives", |volume, value| value.list(&mut volume.drives, |text| Ok(text.to_owned()))),
];

/// Keys after those of queues. A high mark that is given sets the usual low one.
pub const KEYS: [Key<VolumeConfig>; 6] = [
    key("serving", |volume, value| value.word(&mut volume.serving.serving, words::serving)),
    key("plug-high", |volume, value| {
        value.word(&mut volume.serving.plug_high, requests);
        volume.serving.plug_low = volume.serving.plug_low.min(volume.serving.plug_high);
    }),
    key("plug-low", |volume, value| value.word(&mut volume.serving.plug_low, requests)),
    key("pressure-high", |volume, value| {
        value.word(&mut volume.serving.pressure_high, requests);
        let high = volume.serving.pressure_high;
        volume.serving.pressure_low = high - high / 8;
    }),
    key("pressure-low", |volume, value| value.word(&mut volume.serving.pressure_low, requests)),
    key("cache", |volume, value| volume.cache = cache(value)),
];

fn requests(text: &str) -> Result<u32, String> {
    words::number(text, 0, 65_536)
}

/// Reads a section.
pub fn read(mut section: Section<'_>, problems: &mut Problems) -> Option<(VolumeDraft, KeyLines)> {
    let name = section.valid_name(problems);
    let mut volume = VolumeDraft::default();
    volume.config.layout = Layout::Stripe { chunk_sectors: CHUNK_SECTORS };
    section.read(&LAYOUT, &mut volume, problems);
    read_queues(&mut section, &mut volume.queues, problems);
    section.read(&KEYS, &mut volume.config, problems);
    if volume.drives.is_empty() {
        section.missing("it has no drive; add drives = [\"...\"]", problems);
    }
    let lines = section.finish(problems);
    if !lines.has("layout") && !lines.has("chunk") {
        volume.config.layout = default_layout(volume.drives.len());
    }
    let serving = &mut volume.config.serving;
    if !lines.has("serving") {
        serving.serving = default_serving(&vec![Stack::Mq; volume.drives.len()]);
    }
    if let Err(text) = serving.validate() {
        // The text begins with the key.
        let key = text.split(' ').next().unwrap_or_default();
        problems.add(lines.at(key), text.as_str());
    }
    volume.config.name = name?;
    Some((volume, lines))
}

/// Reads `[volume.cache]`.
fn cache(value: Value<'_, '_>) -> Option<CacheConfig> {
    let (mut section, problems) = value.table()?;
    let (mut config, before) = (CacheConfig::default(), problems.count());
    for (key, read) in cache::KEYS {
        section.read_key(key, problems, |value| value.set(|text| read(&mut config, text)));
    }
    let lines = section.finish(problems);
    if problems.count() == before
        && let Err(text) = config.validate()
    {
        problems.add(lines.line, format!("cache: {text}"));
    }
    Some(config)
}
