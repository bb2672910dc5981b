//! The daemon's part of `millrace trace record`: one recording at a time, on request.
//!
//! If its client dies, the recording ends after ten seconds without a request. The requested files
//! must not exist, so that the daemon never overwrites anything.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace::{Words, unknown_word, volume_device};
use millrace_block::blktrace::EventCode;
use millrace_block::{Disk, TraceStamp, Volume};
use millrace_machine::{Native, lock_unpoisoned};
use millrace_runtime::{Recorder, RecorderConfig, TraceFilter, categories_of, trace_file};

use crate::views::report::TraceStatus;
use crate::views::{Refusal, TraceStart};

const LEASE: Duration = Duration::from_secs(10);
const CPUS_MAX: u32 = 4096;

#[derive(Default)]
pub struct TraceRecording(Mutex<Option<Recorder>>);

impl TraceRecording {
    pub fn start(
        &self,
        volumes: &[Arc<Volume<Native>>],
        start: &TraceStart,
    ) -> Result<(), Refusal> {
        let mut place = lock_unpoisoned(&self.0);
        if place.as_ref().is_some_and(|recorder| !recorder.has_ended()) {
            let text = "another recording is in progress; wait until it has ended";
            return Err(Refusal::new("busy", text));
        }
        *place = None;
        if !start.name.is_absolute() {
            return Err(bad(format!("name {}: give an absolute path", start.name.display())));
        }
        let existing =
            (0..CPUS_MAX).map(|cpu| trace_file(&start.name, cpu)).find(|path| path.exists());
        if let Some(path) = existing {
            let text = format!("{} exists already; choose another name", path.display());
            return Err(bad(text));
        }
        let filter = filter(volumes, start)?;
        let word = start.stamp.as_deref().unwrap_or("batch");
        let stamp = TraceStamp::from_word(word)
            .ok_or_else(|| bad(unknown_word("stamp", word, &["batch", "event"])))?;
        let tracer = volumes.iter().find_map(|volume| volume.tracer());
        let tracer =
            tracer.ok_or_else(|| bad("no drive matches; nothing would be recorded".to_owned()))?;
        let devices = device_names(volumes);
        let parts = (0..).zip(volumes).filter(|(_, volume)| volume.drives().len() > 1);
        let parts = parts.flat_map(|(minor, volume)| {
            volume.drives().iter().map(move |disk| (disk.device(), volume_device(minor)))
        });
        let config = RecorderConfig {
            name: start.name.clone(),
            filter,
            volumes: parts.collect(),
            devices,
            stamp,
            lease: Some(LEASE),
            ..RecorderConfig::default()
        };
        let recorder = Recorder::start(&tracer, volumes, config);
        *place = Some(recorder.map_err(|error| Refusal::new("io", error.to_string()))?);
        Ok(())
    }

    /// Returns true during a recording. Drops a recording that has ended by itself, because
    /// recordings keep drives open.
    pub fn is_active(&self) -> bool {
        let mut place = lock_unpoisoned(&self.0);
        drop(place.take_if(|recorder| recorder.has_ended()));
        place.is_some()
    }

    pub fn status(&self) -> Result<TraceStatus, Refusal> {
        let mut place = lock_unpoisoned(&self.0);
        match place.as_ref() {
            None => Err(none()),
            Some(recorder) if recorder.has_ended() => end(place.take()),
            Some(recorder) => {
                recorder.renew();
                let (events, dropped) = recorder.progress();
                Ok(TraceStatus { events, dropped, files: Vec::new() })
            }
        }
    }

    pub fn stop(&self) -> Result<TraceStatus, Refusal> {
        end(lock_unpoisoned(&self.0).take())
    }
}

fn end(recorder: Option<Recorder>) -> Result<TraceStatus, Refusal> {
    let recorded = recorder.ok_or_else(none)?.stop();
    let recorded = recorded.map_err(|error| Refusal::new("io", error.to_string()))?;
    Ok(TraceStatus { events: recorded.events, dropped: recorded.dropped, files: recorded.files })
}

fn none() -> Refusal {
    Refusal::new("none", "nothing is being recorded")
}

fn bad(text: String) -> Refusal {
    Refusal::new("bad-request", text)
}

fn device_names(volumes: &[Arc<Volume<Native>>]) -> BTreeMap<u32, String> {
    let of_volumes = (0..).zip(volumes).filter(|(_, volume)| volume.drives().len() > 1);
    let of_volumes =
        of_volumes.map(|(minor, volume)| (volume_device(minor), volume.name().to_owned()));
    let disks = volumes.iter().flat_map(|volume| volume.drives());
    disks.map(|disk| (disk.device(), disk.name().to_owned())).chain(of_volumes).collect()
}

fn filter(volumes: &[Arc<Volume<Native>>], start: &TraceStart) -> Result<TraceFilter, Refusal> {
    let mut filter =
        TraceFilter { tenant: start.tenant, sectors: start.sectors, ..TraceFilter::default() };
    if let Some(name) = &start.volume {
        let volume = volumes.iter().find(|volume| volume.name() == name);
        let volume = volume.ok_or_else(|| bad(format!("there is no volume {name:?}")))?;
        filter.devices.extend(volume.drives().iter().map(|disk| disk.device()));
    }
    let disks = || volumes.iter().flat_map(|volume| volume.drives());
    for name in &start.drives {
        let named = |disk: &&Arc<Disk<Native>>| disk.name() == name;
        let disk = disks().find(named).ok_or_else(|| bad(format!("there is no drive {name:?}")))?;
        filter.devices.push(disk.device());
    }
    for letters in &start.actions {
        let act = EventCode::from_letters(letters).ok_or_else(|| {
            bad(format!("unknown action {letters:?}; choose from Q G I D C P U UT M F X A R B S"))
        })?;
        filter.acts.push(act);
    }
    for op in &start.ops {
        filter.categories |= categories_of(op).ok_or_else(|| {
            let ops = ["read", "write", "flush", "discard", "sync", "fua"];
            bad(unknown_word("operation", op, &ops))
        })?;
    }
    if start.sectors.is_some_and(|(first, end)| first >= end) {
        return Err(bad("sectors: the first sector must be below the second".to_owned()));
    }
    Ok(filter)
}
