//! `[[volume]]`: the layout, serving mode and cache of a volume.
//!
//! This module owns the key table; the queue keys are in drive.rs and the cache keys in
//! millrace-console. sections.rs calls this module; check.rs resolves the drives by name.

use millrace::{
    CHUNK_SECTORS, CacheConfig, DriveOptions, Stack, VolumeConfig, default_layout, default_serving,
};
use millrace_block::Layout;
use millrace_console::cache;

use super::document::{KeyReader, KeyValue, Section, key, list};
use super::drive::read_queues;
use super::key_lines::KeyLines;
use super::words::{self, LayoutWord};

/// A volume whose drives are not resolved yet.
#[derive(Default)]
pub struct VolumeDraft {
    pub config: VolumeConfig,
    pub drives: Vec<String>,
    /// Queue settings for drives without their own.
    pub queues: DriveOptions,
}

pub const LAYOUT: &[KeyReader<VolumeDraft>] = &[
    key("layout", |to, at| at.word(&mut to.config.layout, layout)),
    key("chunk", |to, at| {
        let layout = to.config.layout;
        at.word(&mut to.config.layout, |text| chunk(layout, text));
    }),
    list("drives", |to, at| at.list(&mut to.drives, |text| Ok(text.to_owned()))),
];

/// Keys of a volume, read in this order after the queue settings. Reading `plug-high` also adjusts
/// `plug_low`, and reading `pressure-high` adjusts `pressure_low`, so `plug-low` and `pressure-low`
/// come later.
pub const KEYS: &[KeyReader<VolumeConfig>] = &[
    key("serving", |to, at| at.word(&mut to.serving.serving, words::serving)),
    key("plug-high", |to, at| {
        at.word(&mut to.serving.plug_high, requests);
        to.serving.plug_low = to.serving.plug_low.min(to.serving.plug_high);
    }),
    key("plug-low", |to, at| at.word(&mut to.serving.plug_low, requests)),
    key("pressure-high", |to, at| {
        at.word(&mut to.serving.pressure_high, requests);
        to.serving.pressure_low = to.serving.pressure_high - to.serving.pressure_high / 8;
    }),
    key("pressure-low", |to, at| at.word(&mut to.serving.pressure_low, requests)),
    key("cache", |to, at| to.cache = cache(at)),
];

fn layout(text: &str) -> Result<Layout, String> {
    match words::layout(text)? {
        LayoutWord::Linear => Ok(Layout::Linear),
        LayoutWord::Stripe => Ok(Layout::Stripe { chunk_sectors: CHUNK_SECTORS }),
    }
}

fn chunk(layout: Layout, text: &str) -> Result<Layout, String> {
    if layout == Layout::Linear {
        let wrong = "a linear volume has no chunk; remove this key, or use layout = \"stripe\"";
        return Err(wrong.to_owned());
    }
    words::chunk_sectors(text).map(|chunk_sectors| Layout::Stripe { chunk_sectors })
}

fn requests(text: &str) -> Result<u32, String> {
    words::number(text, 0, 65_536)
}

pub fn read(mut section: Section<'_>) -> Option<(VolumeDraft, KeyLines)> {
    let name = section.name();
    let mut volume = VolumeDraft::default();
    volume.config.layout = Layout::Stripe { chunk_sectors: CHUNK_SECTORS };
    section.read(LAYOUT, &mut volume);
    read_queues(&mut section, &mut volume.queues);
    section.read(KEYS, &mut volume.config);
    let (config, drives) = (&mut volume.config, volume.drives.len());
    if drives == 0 {
        section.missing("no drives are named; add drives = [\"...\"]");
    }
    if !section.lines.has("layout") && !section.lines.has("chunk") {
        config.layout = default_layout(drives);
    }
    if !section.lines.has("serving") {
        config.serving.serving = default_serving(&vec![Stack::Mq; drives]);
    }
    if let Err(error) = config.serving.validate() {
        let text = error.to_string();
        // The error text begins with a key's name. The problem is reported at the line of that key.
        let key = text.split(' ').next().unwrap_or_default();
        section.problem(key, text.as_str());
    }
    let lines = section.finish();
    config.name = name?;
    Some((volume, lines))
}

pub fn cache(value: KeyValue<'_, '_>) -> Option<CacheConfig> {
    let mut section = value.table()?;
    let (mut config, before) = (CacheConfig::default(), section.problem_count());
    for (key, read) in cache::KEYS {
        section.read_key(key, |value| value.set(|text| read(&mut config, text)));
    }
    if section.problem_count() == before
        && let Err(error) = config.validate()
    {
        section.problem("", format!("cache: {error}"));
    }
    section.finish();
    Some(config)
}
