//! A `TraceProfile` as JSON: one object, with sizes in bytes and times in nanoseconds.
//!
//! Histograms are objects that map the lower bound of a bin, as text, to its count; empty bins are
//! left out. Called by `millrace-lab trace report --json`.

use millrace_block::Op;
use serde_json::{Map, Value, json};

use super::{ArrivalSlot, DeviceCount, PowerBins, TraceProfile};

impl TraceProfile {
    /// Returns the JSON object. `devices` are the device names of the trace.
    pub fn json(&self, devices: &[String]) -> Value {
        let [all, read, written] = self.working_set().map(|bytes| bytes.round() as u64);
        json!({
            "time_ns": self.last_ns(),
            "ios": self.ios(),
            "ops": self.json_ops(),
            "size_bytes": { "read": bins(&self.sizes[0]), "write": bins(&self.sizes[1]) },
            "stride_bytes": {
                "sequential": self.strides.sequential,
                "forward": bins(&self.strides.forward),
                "backward": bins(&self.strides.backward),
            },
            "working_set_bytes": { "all": all, "read": read, "written": written, "error": 0.0081 },
            "devices": self.json_devices(devices),
            "slot_ns": self.slots.slot_ns,
            "slots": self.json_slots(),
        })
    }

    fn json_ops(&self) -> Value {
        let there = Op::ALL.into_iter().filter(|op| self.ops[*op as usize].ios > 0);
        let object = |op: Op| {
            let count = &self.ops[op as usize];
            let mut object = json!({ "ios": count.ios, "bytes": count.bytes, "fua": count.fua });
            if count.latency.n > 0 {
                object["latency"] = json!(count.latency);
            }
            (op.name().to_owned(), object)
        };
        Value::Object(there.map(object).collect())
    }

    fn json_devices(&self, devices: &[String]) -> Value {
        let named = devices.iter().zip(&self.devices);
        let object = |(name, device): (&String, &DeviceCount)| {
            json!({
                "name": name, "ios": device.ios, "reads": device.reads, "bytes": device.bytes,
                "sequential": device.sequential, "end_bytes": device.end,
            })
        };
        named.map(object).collect()
    }

    fn json_slots(&self) -> Value {
        let slot = |slot: &ArrivalSlot| {
            json!({
                "reads": slot.ios[0], "writes": slot.ios[1], "others": slot.ios[2],
                "read_bytes": slot.bytes[0], "written_bytes": slot.bytes[1],
            })
        };
        self.slots.slots.iter().map(slot).collect()
    }
}

fn bins(bins: &PowerBins) -> Value {
    let counted = bins.used().filter(|bin| bins.0[*bin] > 0);
    let pair = |bin: usize| {
        let from = if bin == 0 { 0 } else { 1_u64 << bin };
        (from.to_string(), bins.0[bin].into())
    };
    Value::Object(counted.map(pair).collect::<Map<_, _>>())
}
