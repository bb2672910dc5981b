//! Shrinker: generates smaller variants of a scenario that fails.
//!
//! The caller runs the candidates and continues with the first candidate that still fails, until no
//! candidate fails (greedy delta debugging; source: Zeller and Hildebrandt, "Simplifying and
//! isolating failure-inducing input", 2002). A scenario is a tree of JSON: each candidate leaves
//! out one node of the tree, or replaces one value by a simpler value. Candidates near the root
//! come first, since they remove most. All functions are pure.

use serde_json::{Map, Value};

use super::scenario::Scenario;

/// Settings with their simplest values, which the shrinker tries. Most other numbers shrink towards
/// 0.
const PLAIN: [(&str, u32); 10] = [
    ("cache_percent", 100),
    ("work_percent", 100),
    ("thread_percent", 100),
    ("max_sectors", 2048),
    ("max_segments", 128),
    ("discard_sectors", 1 << 20),
    ("zeroes_sectors", 1 << 20),
    ("drain_us", 5_000_000),
    ("weight", 100),
    ("priority", 1),
];
const FIXED: [&str; 6] = ["seed", "block", "sectors", "size_kib", "dirty_kib", "dirty_age_us"];

/// Returns scenarios with one part left out, the largest parts first. All of them are valid and
/// differ from `scenario`.
pub fn smaller(scenario: &Scenario) -> Vec<Scenario> {
    let whole = serde_json::to_value(scenario).expect("plain data always serializes");
    let mut list = vec![with_half_the_cores(scenario)];
    let mut level = vec![String::new()];
    while !level.is_empty() {
        let mut below = Vec::new();
        for place in &level {
            let Some(part) = whole.pointer(place) else { continue };
            for plainer in plainer(place, part) {
                let mut candidate = whole.clone();
                candidate.pointer_mut(place).into_iter().for_each(|old| *old = plainer.clone());
                list.extend(serde_json::from_value::<Scenario>(candidate).ok());
            }
            match part {
                Value::Object(map) => below.extend(map.keys().map(|key| format!("{place}/{key}"))),
                Value::Array(all) => below.extend((0..all.len()).map(|at| format!("{place}/{at}"))),
                _ => {}
            }
        }
        level = below;
    }
    list.retain(|candidate| candidate != scenario && candidate.check().is_ok());
    list.dedup();
    list
}

fn with_half_the_cores(scenario: &Scenario) -> Scenario {
    let mut half = scenario.clone();
    half.machine.cores = (half.machine.cores / 2).max(1);
    let cpus = half.machine.cpus();
    half.channels.iter_mut().for_each(|channel| channel.cpu %= cpus);
    half.disturbances.iter_mut().for_each(|disturbance| disturbance.cpu %= cpus);
    half.serving.workers.iter_mut().for_each(|cpu| *cpu %= cpus);
    half.cache.iter_mut().for_each(|cache| cache.cpu %= cpus);
    half
}

fn plainer(place: &str, part: &Value) -> Vec<Value> {
    let key = place.rsplit('/').next().unwrap_or_default();
    match part {
        // A setting that is left out takes its default. Without a default the candidate is invalid.
        Value::Object(map) => {
            let without = |left: &String| {
                let others = map.iter().filter(|(key, _)| *key != left);
                Value::Object(
                    others.map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>(),
                )
            };
            map.keys().map(without).collect()
        }
        Value::Array(all) => {
            let without = |at| {
                let others = all.iter().enumerate().filter(|(other, _)| *other != at);
                Value::Array(others.map(|(_, value)| value.clone()).collect())
            };
            let half = Value::Array(all[..all.len() / 2].to_vec());
            std::iter::once(half).chain((0..all.len()).map(without)).collect()
        }
        Value::Number(number) => {
            let number = number.as_u64().unwrap_or(0);
            match PLAIN.iter().find(|(plain, _)| *plain == key) {
                Some((_, plain)) => vec![Value::from(*plain)],
                None if key == "depth" && place.contains("/drives/") => vec![Value::from(64)],
                None if number == 0 || FIXED.contains(&key) => Vec::new(),
                None => [0, number / 2, number * 3 / 4, number - 1].map(Value::from).to_vec(),
            }
        }
        Value::Bool(true) => vec![Value::Bool(false)],
        Value::String(_) => match key {
            "software" | "hardware" => vec![Value::from("one")],
            "mode" => vec![Value::from("inline")],
            "layout" => vec![Value::from("linear")],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}
