//! Converts a table of counters to JSON and back, for serde's attributes `with` and `flatten`.
//!
//! Each row of the table has a JSON pointer to the place of its counter in the JSON. A counter that
//! is missing, because another version wrote the JSON, is read as 0.

use millrace_exports::CounterTable;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

pub fn serialize<T, const N: usize, S>(counters: &T, to: S) -> Result<S::Ok, S::Error>
where
    T: CounterTable<N>,
    S: Serializer,
{
    let mut json = json!({});
    let rows = T::ROWS.iter().zip(counters.values());
    for (row, value) in rows.filter(|(row, _)| !row.pointer.is_empty()) {
        let keys = row.pointer.split('/').skip(1);
        *keys.fold(&mut json, |at, key| &mut at[key]) = value.into();
    }
    json.serialize(to)
}

pub fn deserialize<'de, T, const N: usize, D>(from: D) -> Result<T, D::Error>
where
    T: CounterTable<N>,
    D: Deserializer<'de>,
{
    let json = Value::deserialize(from)?;
    let mut counters = T::default();
    for (row, field) in T::ROWS.iter().zip(counters.fields()) {
        *field = json.pointer(row.pointer).and_then(Value::as_u64).unwrap_or_default();
    }
    Ok(counters)
}
