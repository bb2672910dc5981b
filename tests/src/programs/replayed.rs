//! Time to replay a recording's I/Os with `millrace-lab replay` over a stripe of modelled drives.
//!
//! Each replay runs as fast as possible. The drives are served as Linux did
//! ([`Serving::PerVolume`]), by a worker for each drive (\[FALCON\]'s design), or by the thread
//! that replays. Called by the parent's callers.

use std::path::Path;

use serde_json::Value;

use crate::millrace_lab;
use crate::traces::text;

/// Drives of the stripe and its chunk, as \[FALCON\]'s volume.
const DRIVES: usize = 8;
const DRIVE: &str = "model:preset=850evo";
const CHUNK: &str = "4k";

/// The thread that serves the drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// A single list for all drives, as in Linux's md.
    PerVolume,
    /// A worker for each drive.
    PerDrive,
    /// The thread that replays.
    Inline,
}

impl Serving {
    /// All modes, in the order of [`Times`].
    pub const ALL: [Serving; 3] = [Serving::PerVolume, Serving::PerDrive, Serving::Inline];

    /// The mode's value for `--serving`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Serving::PerVolume => "per-volume",
            Serving::PerDrive => "per-drive",
            Serving::Inline => "inline",
        }
    }
}

/// Where a trace is replayed, and how.
#[derive(Debug, Clone)]
pub struct Rig {
    /// A simulated machine, or this one.
    pub machine: Option<String>,
    /// I/Os in flight at most: few as if the program waited for each, many as if for none.
    pub iodepth: u32,
    /// I/Os that are replayed at most.
    pub limit: u64,
    /// Replays of each kind in turn, of which the median counts; a simulation needs only one.
    pub rounds: u32,
}

/// Seconds of each way of serving, in the order of [`Serving::ALL`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// Seconds.
    pub seconds: [f64; 3],
    /// I/Os that each replay did.
    pub ios: u64,
}

impl Times {
    /// Speed-up of a worker per drive over the single list.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.seconds[0] / self.seconds[1]
    }
}

impl Rig {
    /// The name of the machine, for people.
    #[must_use]
    pub fn place(&self) -> &str {
        self.machine.as_deref().unwrap_or("this machine")
    }

    /// Replays the recording `name` in `dir` in each way.
    ///
    /// # Panics
    /// If a replay fails, or two of them did not do as much.
    #[must_use]
    pub fn times(&self, dir: &Path, name: &str) -> Times {
        let mut taken = [const { Vec::new() }; 3];
        let mut ios = None;
        for _ in 0..self.rounds.max(1) {
            for (seconds, serving) in taken.iter_mut().zip(Serving::ALL) {
                let report = self.replay((dir, name), serving);
                let done = report["ios"].as_u64().expect("a count");
                assert_eq!(*ios.get_or_insert(done), done, "{name} {}", serving.word());
                seconds.push(report["seconds"].as_f64().expect("a number"));
            }
        }
        let median = |mut seconds: Vec<f64>| {
            seconds.sort_by(f64::total_cmp);
            seconds[seconds.len() / 2]
        };
        Times { seconds: taken.map(median), ios: ios.unwrap_or_default() }
    }

    fn replay(&self, (dir, name): (&Path, &str), serving: Serving) -> Value {
        let mut replay = millrace_lab();
        replay.current_dir(dir).args(["replay", name, "--json", "--speed", "afap"]);
        (0..DRIVES).for_each(|_| {
            replay.args(["--to", DRIVE]);
        });
        replay.args(["--chunk", CHUNK, "--serving", serving.word()]);
        replay.args(["--iodepth", &self.iodepth.to_string(), "--limit", &self.limit.to_string()]);
        if let Some(machine) = &self.machine {
            replay.args(["--machine", machine]);
        }
        serde_json::from_str(&text(&mut replay)).expect("a report as JSON")
    }
}
