//! The result of one measured configuration (`Row`) as a flat JSON object, with fio's keys where
//! fio has a key with the same meaning.
//!
//! This file defines the keys. These have fio's names and meanings: `jobname`, `numjobs`, `rw`,
//! `bs`, `iodepth`, `total_ios`, `io_bytes`, `runtime` (milliseconds), `iops`, `bw_bytes`,
//! `total_err`, and `lat_ns` with `N`, `mean`, `max` and `percentile`. fio nests these keys by job
//! and direction; here a row is one flat object. docs/lab/bench.md lists all keys. serde calls this
//! file for `bench --json`.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{Cost, DriveStates, LatencyNs, MachineRow, Queues, Row};

#[derive(Serialize)]
struct RowJson<'a> {
    jobname: String,
    #[serde(flatten)]
    queues: &'a Queues,
    drives: &'a str,
    #[serde(flatten)]
    asked: JobOptions<'a>,
    #[serde(flatten)]
    done: JobTotals,
    #[serde(flatten)]
    cost: &'a Cost,
    lat_ns: &'a LatencyNs,
    total_err: u64,
    verified: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_text: Option<&'a str>,
    #[serde(skip_serializing_if = "slice_is_empty")]
    states: &'a [DriveStates],
    #[serde(flatten)]
    machine: Option<&'a MachineRow>,
}

#[derive(Serialize)]
struct JobOptions<'a> {
    numjobs: u32,
    iodepth: u32,
    bs: u32,
    rw: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rwmixread: Option<u8>,
    stamp: &'a str,
}

#[derive(Serialize)]
struct JobTotals {
    total_ios: u64,
    io_bytes: u64,
    /// Length of the measured time in milliseconds, as in fio.
    runtime: u64,
    seconds: f64,
    iops: f64,
    bw_bytes: u64,
}

fn slice_is_empty<T>(slice: &[T]) -> bool {
    slice.is_empty()
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = RowJson {
            jobname: self.job_name(),
            queues: &self.queues,
            drives: &self.drives,
            asked: JobOptions {
                numjobs: self.jobs,
                iodepth: self.iodepth,
                bs: self.bs,
                rw: self.rw.name(),
                rwmixread: self.rw.read_percent(),
                stamp: &self.stamp,
            },
            done: JobTotals {
                total_ios: self.ios,
                io_bytes: self.ios * u64::from(self.bs),
                runtime: (self.seconds * 1e3).round() as u64,
                seconds: self.seconds,
                iops: self.iops,
                bw_bytes: self.bw_bytes_per_s.round() as u64,
            },
            cost: &self.cost,
            lat_ns: &self.lat_ns,
            total_err: self.outcome.errors,
            verified: self.outcome.verified,
            error_text: self.outcome.first_error.as_deref(),
            states: &self.outcome.states,
            machine: self.machine.as_ref(),
        };
        row.serialize(serializer)
    }
}

impl Serialize for LatencyNs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry("N", &self.samples)?;
        map.serialize_entry("mean", &self.mean)?;
        map.serialize_entry("max", &self.max)?;
        map.serialize_entry("percentile", &Percentiles(self))?;
        map.end()
    }
}

struct Percentiles<'a>(&'a LatencyNs);

impl Serialize for Percentiles<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let of = self.0;
        serializer.collect_map([
            ("50.000000", of.p50),
            ("90.000000", of.p90),
            ("95.000000", of.p95),
            ("99.000000", of.p99),
            ("99.900000", of.p999),
            ("99.990000", of.p9999),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::workload::Rw;

    #[test]
    fn keys_are_those_of_fio_where_fio_has_them() {
        let row = Row {
            jobs: 2,
            bs: 4096,
            ios: 1000,
            seconds: 2.0004,
            bw_bytes_per_s: 2_047_590.6,
            rw: Rw::RandRead,
            lat_ns: LatencyNs { samples: 7, p99: 9, ..LatencyNs::default() },
            ..Row::default()
        };
        let json = serde_json::to_value(&row).unwrap();
        for (key, value) in [
            ("jobname", serde_json::json!("-randread-4096-0x2")),
            ("numjobs", 2.into()),
            ("total_ios", 1000.into()),
            ("io_bytes", 4_096_000.into()),
            ("runtime", 2000.into()),
            ("bw_bytes", 2_047_591.into()),
            ("total_err", 0.into()),
        ] {
            assert_eq!(json[key], value, "{key}");
        }
        assert_eq!(json["lat_ns"]["N"], 7);
        assert_eq!(json["lat_ns"]["percentile"]["99.000000"], 9);
        for gone in ["jobs", "ios", "bw_bytes_per_s", "errors"] {
            assert!(json.get(gone).is_none(), "{gone}");
        }
    }
}
