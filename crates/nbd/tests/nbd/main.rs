//! Tests of the NBD protocol core: exact bytes, round trips, and properties over random bytes.
//!
//! Owns the helpers that play a client or a server to the core.
#![allow(clippy::unwrap_used)] // Tests may.

mod answers;
mod bounds;
mod client;
mod corpus;
mod handshake;
mod properties;
mod reply;
mod transmission;
mod values;

use millrace_nbd::wire::put_option;
use millrace_nbd::{
    ExportCatalog, ExportInfo, Handshake, Progress, ProtocolError, ReplyStyle, Session,
    TransmissionFlags,
};

const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];

/// Everything an export can offer, except being read-only.
const ALL_FLAGS: TransmissionFlags = TransmissionFlags::FLUSH
    .with(TransmissionFlags::FUA)
    .with(TransmissionFlags::TRIM)
    .with(TransmissionFlags::WRITE_ZEROES)
    .with(TransmissionFlags::DF)
    .with(TransmissionFlags::MULTI_CONN)
    .with(TransmissionFlags::CACHE)
    .with(TransmissionFlags::FAST_ZERO);

fn disk() -> ExportInfo {
    ExportInfo {
        name: "disk".to_owned(),
        description: "a disk".to_owned(),
        size_bytes: 1 << 30,
        flags: ALL_FLAGS,
        block_min: 512,
        block_preferred: 4096,
        block_max: 1 << 25,
    }
}

fn catalog() -> Vec<ExportInfo> {
    let read_only = ExportInfo {
        name: "ro".to_owned(),
        description: String::new(),
        flags: TransmissionFlags::READ_ONLY,
        ..disk()
    };
    vec![disk(), read_only]
}

fn session(style: ReplyStyle) -> Session {
    Session { export: 0, style, base_allocation: None, no_zeroes: true, block_sizes: true }
}

/// Client flags (fixed newstyle, no zeroes) and then the options.
fn stream(options: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 3];
    for (option, data) in options {
        put_option(&mut bytes, *option, data);
    }
    bytes
}

/// Plays the bytes in pieces; the answers without the greeting, the bytes used, the end.
fn play(input: &[u8], cuts: &[usize]) -> (Vec<u8>, usize, Result<Progress, ProtocolError>) {
    let (catalog, mut handshake, mut out) = (catalog(), Handshake::new(), Vec::new());
    let (mut used, mut seen, mut cut) = (0, 0, 0);
    let mut is_unsent = false;
    while seen < input.len() || is_unsent {
        if !is_unsent {
            let piece = cuts.get(cut).copied().unwrap_or(input.len()).max(1);
            cut += 1;
            seen = input.len().min(seen + piece);
        }
        match handshake.feed(&catalog, &input[used..seen], &mut out) {
            Ok((bytes, progress)) => {
                assert!(bytes <= seen - used, "consumed more than given");
                used += bytes;
                is_unsent = progress == Progress::Unsent;
                if !is_unsent && progress != Progress::NeedMore {
                    return (out, used, Ok(progress));
                }
            }
            Err(error) => return (out, 0, Err(error)),
        }
    }
    (out, used, Ok(Progress::NeedMore))
}

/// Feeds the bytes, and the rest of them for as long as answers are sent in parts; the longest
/// part and the end.
fn feed_whole(
    handshake: &mut Handshake,
    catalog: &dyn ExportCatalog,
    input: &[u8],
    out: &mut Vec<u8>,
) -> (usize, Result<Progress, ProtocolError>) {
    let (mut used, mut longest) = (0, 0);
    loop {
        let before = out.len();
        let end = handshake.feed(catalog, &input[used..], out);
        longest = longest.max(out.len() - before);
        match end {
            Ok((bytes, Progress::Unsent)) => used += bytes,
            end => return (longest, end.map(|(_, progress)| progress)),
        }
    }
}

/// Plays options in one piece.
fn negotiate(options: &[(u32, Vec<u8>)]) -> (Vec<u8>, Result<Progress, ProtocolError>) {
    let (out, _, end) = play(&stream(options), &[]);
    (out, end)
}

/// The answers as (option, type, data).
fn answers(mut out: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut all = Vec::new();
    while !out.is_empty() {
        let mut reader = millrace_nbd::wire::Reader::new(out);
        assert_eq!(reader.u64(), Some(millrace_nbd::wire::OPTION_REPLY_MAGIC));
        let (option, kind) = (reader.u32().unwrap(), reader.u32().unwrap());
        all.push((option, kind, reader.counted().unwrap().to_vec()));
        out = reader.rest();
    }
    all
}

/// Data of `OPT_INFO` and `OPT_GO`.
fn info_data(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|info| data.extend_from_slice(&info.to_be_bytes()));
    data
}

/// Data of the metadata context options.
fn context_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend_from_slice(&(query.len() as u32).to_be_bytes());
        data.extend_from_slice(query.as_bytes());
    }
    data
}
