//! Parser for the value of `bench --vm`: a virtual machine's I/O mode, and keys that change the
//! mode's defaults.
//!
//! clap calls the parser; millrace-experiments refuses invalid combinations.

use clap::Args;
use millrace_console::words::time;
use millrace_drives::{Words, nearest};
use millrace_experiments::vm::{Effect, Mode, VmSetting};
use millrace_machine::nanoseconds;

use crate::verbs::bench::row_flags::rows_only;

/// Flags that `--vm` excludes, because they have no meaning for a virtual machine.
const OTHERS: &str = "\
    client calibrate connect virtqueue controller chunk stack scheduler software_queues \
    hardware_queues cpus cpu_list serving workers plug_high plug_low states stamp trace locks \
    extended";

/// A virtual machine on the simulated host.
#[derive(Debug, Clone, Args)]
pub struct VmArgs {
    /// With --machine, run the jobs in a virtual machine on the simulated machine:
    /// `MODE,KEY=VALUE,...`. Repeat --vm to compare several virtual machines. Modes: baseline (one
    /// virtqueue, one I/O thread), mq (a virtqueue for each vCPU, one I/O thread), miot (a
    /// virtqueue and an I/O thread for each vCPU, workload-aware batching). Optional keys: vcpus
    /// (number; 8 by default), threads (number of I/O threads), batching (longest wait to collect a
    /// batch, such as 20us; 0 turns it off), polling (longest time that an I/O thread polls; 0 by
    /// default), without (an effect that is not simulated; may be repeated). Effects: preemption
    /// (of vCPUs that hold a lock), roaming (threads wake up on any idle CPU), sharing (of a core
    /// by hyper-threads), bound (limits the wait for a batch to the time that it can gain),
    /// translation (I/O threads share a map of guest memory), signals (an interrupt for each
    /// request)
    #[arg(long, value_name = "MODE", requires = "machine", conflicts_with_all = rows_only(OTHERS))]
    #[arg(value_parser = setting)]
    pub vm: Vec<VmSetting>,
}

fn setting(text: &str) -> Result<VmSetting, String> {
    let mut words = text.split(',');
    let word = words.next().unwrap_or_default();
    let known = || Mode::WORDS.iter().map(|(_, word)| *word);
    let mode = Mode::WORDS.iter().find(|(_, known)| *known == word);
    let (mode, _) = mode.ok_or_else(|| {
        let no = if word.is_empty() { "no mode".to_owned() } else { word.to_owned() };
        format!("{no}: {}begin with one of {}", meant(word, known()), list(known()))
    })?;
    let mut setting = VmSetting::new(*mode);
    let mut given = Vec::new();
    for pair in words {
        if pair.is_empty() {
            return Err("nothing follows a comma; write KEY=VALUE, or remove the comma".to_owned());
        }
        let (key, value) =
            pair.split_once('=').ok_or_else(|| format!("{pair}: write KEY=VALUE"))?;
        if key != "without" && given.contains(&key) {
            return Err(format!("{key}: given twice; remove one of them"));
        }
        given.push(key);
        set(&mut setting, key, value).map_err(|text| format!("{key}={value}: {text}"))?;
    }
    Ok(setting)
}

const KEYS: [&str; 5] = ["vcpus", "threads", "batching", "polling", "without"];

fn set(setting: &mut VmSetting, key: &str, value: &str) -> Result<(), String> {
    let number = || value.parse::<u32>().map_err(|_| "write a number".to_owned());
    match key {
        "vcpus" => setting.vcpus = number()?,
        "threads" => setting.threads = Some(number()?),
        "batching" => setting.batching_ns = Some(nanoseconds(time(value)?)),
        "polling" => setting.polling_ns = nanoseconds(time(value)?),
        "without" => {
            let known = || Effect::WORDS.iter().map(|(_, word)| *word);
            let found = Effect::WORDS.iter().find(|(_, word)| *word == value);
            let (effect, _) = found
                .ok_or_else(|| format!("{}one of {}", meant(value, known()), list(known())))?;
            setting.without.push(*effect);
        }
        _ => return Err(format!("{}the keys are {}", meant(key, KEYS), list(KEYS))),
    }
    Ok(())
}

fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().collect::<Vec<_>>().join(", ")
}

/// Returns `did you mean ...? ` with the known word most similar to `word`, or an empty text.
fn meant<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |near| format!("did you mean {near}? "))
}
