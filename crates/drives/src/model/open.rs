//! Parses a spec into the settings of a simulated drive, and computes its usual service times.
//!
//! Keys of the spec override settings of a preset, or the default settings.

use std::time::Duration;

use millrace_block::{Error, ErrorKind, QueueKind};
use millrace_machine::nanoseconds;
use millrace_random::mixed;

use super::ModelDriver;
use super::config::{ModelConfig, ModelContents, ModelTiming};
use super::controller::{ControllerLimits, ModelController};
use super::link::{ModelIo, ModelIoKind};
use super::preset::model_presets;
use super::timing::ServiceTiming;
use crate::common::units::{rate_bytes_per_s, size_bytes};
use crate::common::words::nearest;
use crate::open::{DriveSettings, DriverRow, OpenOptions, Opened};
use crate::spec::{Spec, SpecError};

pub(crate) const ROW: DriverRow = DriverRow {
    name: "model",
    keys: "preset size block queues depth data units page read write latency read-command \
           write-command read-bandwidth write-bandwidth buffer jitter tail-share tail \
           seed controller controller-tags controller-bandwidth controller-command",
    main_key: None,
    path_keys: "",
    queues: QueueKind::AnyThread,
    settings: |spec| {
        let config = config_of(spec)?;
        config.validate().map_err(|text| Error::new(ErrorKind::InvalidSetting, text))?;
        Ok(Box::new(config))
    },
};

impl DriveSettings for ModelConfig {
    fn open(self: Box<Self>, _: u16, _: &OpenOptions) -> Result<Opened, SpecError> {
        Ok(Opened::plain(ModelDriver::new(*self)?))
    }
}

pub(crate) fn config_of(spec: &Spec) -> Result<ModelConfig, SpecError> {
    let base = base_of(spec)?;
    let contents = [("none", ModelContents::None), ("ram", ModelContents::Ram)];
    Ok(ModelConfig {
        size_bytes: spec.size("size")?.unwrap_or(base.size_bytes),
        block_size: spec.block()?.unwrap_or(base.block_size),
        queues: spec.number("queues", 2048)?.unwrap_or(base.queues),
        depth: spec.depth()?.unwrap_or(base.depth),
        contents: spec.choice("data", &contents)?.unwrap_or_default(),
        timing: timing_of(spec, base.timing)?,
        controller: controller_of(spec)?,
    })
}

fn base_of(spec: &Spec) -> Result<ModelConfig, SpecError> {
    let Some(name) = spec.get("preset") else { return Ok(ModelConfig::default()) };
    if let Some(preset) = model_presets().iter().find(|preset| preset.name == name) {
        return Ok(preset.config());
    }
    let names = || model_presets().iter().map(|preset| preset.name);
    let like = nearest(name, names()).map_or_else(String::new, |n| format!("did you mean `{n}`? "));
    let all = names().collect::<Vec<_>>().join(", ");
    Err(spec.invalid("preset", &format!("{like}there are {all}")))
}

fn timing_of(spec: &Spec, base: ModelTiming) -> Result<ModelTiming, SpecError> {
    if let Some(key) = spec.first_of(FLASH_KEYS).filter(|_| base.disk.is_some()) {
        let text = format!("the preset is a rotating disk, which has no {key}; remove this key");
        return Err(spec.invalid(key, &text));
    }
    let rate = |key| spec.read(key, rate_bytes_per_s);
    let page = spec.read("page", size_bytes)?;
    Ok(ModelTiming {
        units: spec.number("units", ModelTiming::UNITS_MAX.into())?.unwrap_or(base.units),
        page_bytes: page.map_or(base.page_bytes, |bytes| u32::try_from(bytes).unwrap_or(u32::MAX)),
        read_time: spec.time("read")?.unwrap_or(base.read_time),
        write_time: spec.time("write")?.unwrap_or(base.write_time),
        latency: spec.time("latency")?.unwrap_or(base.latency),
        read_command_time: spec.time("read-command")?.unwrap_or(base.read_command_time),
        write_command_time: spec.time("write-command")?.unwrap_or(base.write_command_time),
        read_bytes_per_s: rate("read-bandwidth")?.unwrap_or(base.read_bytes_per_s),
        write_bytes_per_s: rate("write-bandwidth")?.unwrap_or(base.write_bytes_per_s),
        buffer_bytes: spec.read("buffer", size_bytes)?.unwrap_or(base.buffer_bytes),
        jitter: spec.fraction("jitter")?.unwrap_or(base.jitter),
        tail_share: spec.fraction("tail-share")?.unwrap_or(base.tail_share),
        tail: spec.time("tail")?.unwrap_or(base.tail),
        seed: spec.seed()?.unwrap_or(base.seed),
        disk: base.disk,
    })
}

const FLASH_KEYS: &str = "units page read write latency read-command write-command \
                          read-bandwidth write-bandwidth buffer tail-share tail";

fn controller_of(spec: &Spec) -> Result<Option<std::sync::Arc<ModelController>>, SpecError> {
    let tags = spec.number("controller-tags", 1 << 20)?;
    let bytes_per_s = spec.read("controller-bandwidth", rate_bytes_per_s)?;
    let command_time = spec.time("controller-command")?;
    let Some(name) = spec.get("controller") else {
        let lone = spec.first_of("controller-tags controller-bandwidth controller-command");
        return lone.map_or(Ok(None), |key| Err(spec.invalid(key, "it needs controller=NAME")));
    };
    let found = ModelController::named(name, |limits| {
        limits.tags = tags.unwrap_or(limits.tags);
        limits.bytes_per_s = bytes_per_s.unwrap_or(limits.bytes_per_s);
        limits.command_ns = command_time.map_or(limits.command_ns, nanoseconds);
    });
    found.map(Some).map_err(|known| {
        let ControllerLimits { tags, bytes_per_s, command_ns } = known.limits;
        let text = format!(
            "another drive has a controller of this name with {tags} tags, {bytes_per_s} bytes per \
             second and {command_ns} ns a command (0 for no limit); give both the same"
        );
        spec.invalid("controller", &text)
    })
}

/// Returns the usual service times of an idle simulated drive (`model`). Returns `None` if `spec`
/// is of another driver or invalid.
#[must_use]
pub fn usual_times(spec: &Spec) -> Option<UsualTimes> {
    let config = (spec.driver == "model").then(|| config_of(spec).ok()).flatten()?;
    config.validate().ok()?;
    Some(UsualTimes::of(&config.timing, config.size_bytes))
}

/// Number of I/Os tried of each kind; odd, so that there is a median.
const TRIES: usize = 129;
/// Interval between two sample I/Os, apart from the random times (`MORE_NS`): 100 s of virtual time
/// in nanoseconds. After it, the drive has finished all earlier work, such as writing its buffer.
const APART_NS: u64 = 100_000_000_000;
/// Limit of the random time by which each sample I/O starts later: 1 s in nanoseconds. A rotating
/// disk turns many times in 1 s, so each sample I/O finds the disk at a random angle.
const MORE_NS: u64 = 1_000_000_000;

/// Median times of a 4 KiB read and write on an idle drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsualTimes {
    /// Median time of a read.
    pub read: Duration,
    /// Median time of a write.
    pub write: Duration,
}

impl UsualTimes {
    pub(super) fn of(timing: &ModelTiming, size_bytes: u64) -> UsualTimes {
        let median = |kind| {
            let mut drive = ServiceTiming::new(timing);
            let pages = (size_bytes >> 12).max(1);
            let time_ns = |at: u64| {
                let sector = mixed(2 * at) % pages * 8;
                let now_ns = at * APART_NS + mixed(2 * at + 1) % MORE_NS;
                drive.submit(now_ns, ModelIo { kind, sector, nr_sectors: 8 }, None) - now_ns
            };
            let mut times: Vec<u64> = (1..=TRIES as u64).map(time_ns).collect();
            times.sort_unstable();
            Duration::from_nanos(times[TRIES / 2])
        };
        UsualTimes { read: median(ModelIoKind::Read), write: median(ModelIoKind::Write) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::model_presets;

    fn us(number: u64) -> Duration {
        Duration::from_micros(number)
    }

    fn config(text: &str) -> ModelConfig {
        config_of(&text.parse().unwrap()).unwrap()
    }

    fn error(text: &str) -> String {
        config_of(&text.parse().unwrap()).expect_err("the spec is wrong").to_string()
    }

    #[test]
    fn keys_override_their_preset_and_nothing_else() {
        let (plain, changed) =
            (config("model:preset=950pro"), config("model:preset=950pro,read=1us"));
        let expected = ModelTiming { read_time: us(1), ..plain.timing.clone() };
        assert_eq!((changed.timing, changed.depth), (expected, plain.depth));
    }

    #[test]
    fn every_key_reaches_its_setting() {
        let config = config(
            "model:size=1g,block=4k,queues=3,depth=5,data=ram,units=7,page=16k,read=1us,write=2us,\
             latency=3us,read-command=4us,write-command=5us,read-bandwidth=6MB,write-bandwidth=7k,buffer=8k,\
             jitter=0.5,tail-share=0.25,tail=9us,seed=10,controller=every-key,controller-tags=11,\
             controller-bandwidth=12GB,controller-command=13us",
        );
        let head = (config.size_bytes, config.block_size, config.queues, config.depth);
        assert_eq!(head, (1 << 30, 4096, 3, 5));
        assert_eq!(config.contents, ModelContents::Ram);
        let expected = ModelTiming {
            units: 7,
            page_bytes: 16 << 10,
            read_time: us(1),
            write_time: us(2),
            latency: us(3),
            read_command_time: us(4),
            write_command_time: us(5),
            read_bytes_per_s: 6_000_000,
            write_bytes_per_s: 7 << 10,
            buffer_bytes: 8 << 10,
            jitter: 0.5,
            tail_share: 0.25,
            tail: us(9),
            seed: 10,
            disk: None,
        };
        assert_eq!(config.timing, expected);
        let expected =
            ControllerLimits { tags: 11, bytes_per_s: 12_000_000_000, command_ns: 13_000 };
        assert_eq!(config.controller.unwrap().limits, expected);
    }

    #[test]
    fn unknown_preset_names_the_nearest_and_all() {
        assert_eq!(
            error("model:preset=950por"),
            "driver model: preset=950por is invalid; did you mean `950pro`? there are 850evo, \
             950pro, \
             520, 520-sata2, miot-nvme, walk-nvme, p5800x, hdd7200, ultrastar-36lzx"
        );
    }

    #[test]
    fn a_disk_that_rotates_refuses_the_settings_of_flash() {
        assert!(config("model:preset=hdd7200,size=1t,data=ram,depth=4").timing.disk.is_some());
        for key in FLASH_KEYS.split(' ') {
            let text = error(&format!("model:preset=hdd7200,{key}=1"));
            assert!(text.contains(key) && text.contains("rotating disk"), "{text}");
        }
    }

    #[test]
    fn unnamed_or_conflicting_controllers_are_refused() {
        assert!(error("model:controller-tags=5").contains("it needs controller=NAME"));
        let _held = config("model:controller=refused,controller-tags=5");
        let text = error("model:controller=refused,controller-tags=6");
        assert!(text.contains("with 5 tags"), "{text}");
    }

    #[test]
    fn every_preset_is_a_valid_drive() {
        for preset in model_presets() {
            assert_eq!(preset.config().validate(), Ok(()), "{}", preset.name);
        }
    }

    #[test]
    fn presets_usually_take_what_their_data_sheets_say() {
        for preset in model_presets() {
            let config = preset.config();
            let usual = UsualTimes::of(&config.timing, config.size_bytes);
            let near = |found: Duration, stated: Duration| found.abs_diff(stated) <= stated / 4;
            let (read, write) = preset.latency;
            let name = preset.name;
            assert!(near(usual.read, read), "{name}: {usual:?}, {:?}", preset.latency);
            assert!(near(usual.write, write), "{name}: {usual:?}, {:?}", preset.latency);
        }
    }
}
