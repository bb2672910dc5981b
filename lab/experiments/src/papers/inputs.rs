//! Inputs of a paper's simulations that are not part of a machine model: drives, and other
//! constants.
//!
//! `Given` makes a table of these inputs. The table is at the end of the paper's result page, next
//! to the tables of the machines' constants. The values of a drive come from the drive's preset.
//! `DriveOrigins` names the sources of these values.

use std::time::Duration;

use millrace_drives::{ModelPreset, model_presets};

use serde::Deserialize;

use crate::page::{Constant, MachineTable};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Given {
    name: String,
    about: String,
    #[serde(rename = "drive", default)]
    drives: Vec<DriveOrigins>,
    #[serde(rename = "other", default)]
    others: Vec<Constant>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DriveOrigins {
    pub(crate) preset: String,
    pub(crate) rates: String,
    pub(crate) bandwidth: String,
    pub(crate) latency: String,
    /// Source of the values for the drive's internal parallelism and its service times.
    pub(crate) inside: String,
}

impl Given {
    pub(crate) fn table(&self) -> MachineTable {
        let preset =
            |of: &DriveOrigins| model_presets().iter().find(|preset| preset.name == of.preset);
        let drives = self.drives.iter().filter_map(|of| Some(drive(preset(of)?, of)));
        let constants = drives.flatten().chain(self.others.iter().cloned()).collect();
        MachineTable { name: self.name.clone(), about: self.about.clone(), constants }
    }
}

fn drive(preset: &ModelPreset, of: &DriveOrigins) -> [Constant; 4] {
    let timing = preset.config().timing;
    let (rates, depth, bytes) = (preset.random_iops, preset.depth, preset.bytes_per_s);
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    let inside = match timing.disk {
        Some(disk) => format!(
            "{} rpm; a seek takes {} us to the next track, {} us on average",
            disk.rpm,
            us(disk.track_seek.0),
            us(disk.average_seek.0)
        ),
        None => format!(
            "{} dies, a page of {} KiB read in {} us, written in {} us; each I/O takes {} us more; \
             write buffer of {} MiB",
            timing.units,
            timing.page_bytes >> 10,
            us(timing.read_time),
            us(timing.write_time),
            us(timing.latency),
            timing.buffer_bytes >> 20
        ),
    };
    let [rates, bandwidth, latency] = [
        (
            "rates of random reads, random writes",
            format!("{}, {} IOPS at depth {depth}", rates.0, rates.1),
            of.rates.as_str(),
        ),
        (
            "bandwidths of sequential reads, writes",
            format!("{}, {} MB/s", bytes.0 / 1_000_000, bytes.1 / 1_000_000),
            of.bandwidth.as_str(),
        ),
        (
            "latencies of reads, writes at queue depth 1",
            format!("{}, {} us", us(preset.latency.0), us(preset.latency.1)),
            of.latency.as_str(),
        ),
    ]
    .map(|(what, value, origin)| (format!("{}: {what}", of.preset), value, origin));
    let inside = (format!("{}: internal structure", of.preset), inside, of.inside.as_str());
    [rates, bandwidth, latency, inside].map(|(name, value, origin)| Constant {
        name,
        value,
        origin: origin.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Source;

    #[test]
    fn drive_has_its_presets_figures_each_with_origin_that_counts() {
        let of = |preset: &str| DriveOrigins {
            preset: preset.into(),
            rates: "input: it".into(),
            bandwidth: "published: it, looked up".into(),
            latency: "assumption: it".into(),
            inside: "counted: it".into(),
        };
        let given = Given {
            name: "rig".into(),
            about: "what else".into(),
            drives: vec![of("850evo"), of("ultrastar-36lzx"), of("no-such")],
            others: vec![Constant {
                name: "a".into(),
                value: "1".into(),
                origin: "not used: it".into(),
            }],
        };
        let table = given.table();
        let values: Vec<&str> = table.constants.iter().map(|it| it.value.as_str()).collect();
        assert_eq!(values.len(), 9);
        assert_eq!(values[0], "98000, 90000 IOPS at depth 32");
        assert!(values[3].starts_with("32 dies, a page of 4 KiB read in 73 us"), "{values:?}");
        assert!(values[7].starts_with("10000 rpm; a seek takes"), "{values:?}");
        assert_eq!(table.constants[1].source(), Source::Published);
    }
}
