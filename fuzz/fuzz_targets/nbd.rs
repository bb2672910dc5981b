//! Fuzzes the NBD protocol core. Each input goes to every parser of untrusted bytes:
//! - As bytes from a client: the server's negotiation, whole and in pieces, and the request parser
//!   with its checks.
//! - As bytes from a server: the client's negotiation, and the reply parser in each style.
//! - As text: the URI parser.
//!
//! The fuzzer demands:
//! - There is no panic, and a parser consumes no more bytes than it was given.
//! - The outcome of a negotiation does not depend on the size of the pieces.
//! - An accepted request lies inside the export and on its block boundaries.
//!
//! Seeds in `corpus/nbd` are conversations that the core's own tests wrote.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_nbd::client::{NbdUri, parse_reply, ClientHandshake, ClientProgress, ServerReply};
use millrace_nbd::{ExportCatalog, Command, ExportInfo, Handshake, Progress, ReplyStyle, RequestLimits, Session, TransmissionFlags, RequestVerdict};

const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];

fuzz_target!(|input: &[u8]| {
    let exports = exports();
    let whole = negotiate(&exports, input, input.len().max(1));
    if input.len() <= 4096 {
        assert_eq!(whole, negotiate(&exports, input, 1), "outcome depends on the pieces");
        assert_eq!(whole, negotiate(&exports, input, 7), "outcome depends on the pieces");
    }
    if let Some((used, Ok(Progress::Ready(session)))) = whole.1 {
        requests(&exports[session.export], &session, &input[used..]);
    }
    for style in STYLES {
        requests(&exports[0], &session(style), input);
        replies(style, input);
        client(style, input);
    }
    if let Ok(text) = std::str::from_utf8(input) {
        let _ = text.parse::<NbdUri>();
    }
});

fn exports() -> Vec<ExportInfo> {
    let flags = TransmissionFlags::from_bits(0x0fff).without(TransmissionFlags::READ_ONLY);
    let disk = ExportInfo {
        name: "disk".to_owned(),
        description: "a disk".to_owned(),
        size_bytes: 1 << 30,
        flags,
        block_min: 512,
        block_preferred: 4096,
        block_max: 1 << 25,
    };
    let flags = TransmissionFlags::READ_ONLY;
    let other = ExportInfo { name: "ro".to_owned(), flags, block_min: 1, ..disk.clone() };
    vec![disk, other]
}

fn session(style: ReplyStyle) -> Session {
    Session {
        export: 0,
        style,
        base_allocation: (style != ReplyStyle::Simple).then_some(1),
        no_zeroes: true,
        block_sizes: true,
    }
}

type Outcome = (Vec<u8>, Option<(usize, Result<Progress, millrace_nbd::ProtocolError>)>);

fn negotiate(catalog: &dyn ExportCatalog, input: &[u8], piece: usize) -> Outcome {
    let (mut handshake, mut out) = (Handshake::new(), Vec::new());
    handshake.greeting(&mut out);
    let (mut used, mut seen) = (0, 0);
    let mut is_unsent = false;
    while seen < input.len() || is_unsent {
        seen = input.len().min(if is_unsent { seen } else { seen + piece });
        match handshake.feed(catalog, &input[used..seen], &mut out) {
            Ok((bytes, progress)) => {
                assert!(bytes <= seen - used, "consumed more than given");
                used += bytes;
                is_unsent = progress == Progress::Unsent;
                if !is_unsent && progress != Progress::NeedMore {
                    return (out, Some((used, Ok(progress))));
                }
            }
            Err(error) => return (out, Some((0, Err(error)))),
        }
    }
    (out, None)
}

fn requests(export: &ExportInfo, session: &Session, mut input: &[u8]) {
    let rules = RequestLimits::new(export, session);
    while let Ok(Some((request, header_bytes))) = millrace_nbd::parse(input, session) {
        assert!(header_bytes <= input.len(), "consumed more than given");
        input = &input[header_bytes..];
        let mut skip = request.payload_bytes(session.style);
        match millrace_nbd::check(&request, &rules, session) {
            RequestVerdict::Accept => {
                let end = u128::from(request.offset) + u128::from(request.length);
                if !matches!(request.command, Command::Disc | Command::Flush) {
                    assert!(end <= u128::from(rules.size_bytes) && request.length > 0);
                    let block = u64::from(rules.block_min);
                    assert!(request.offset % block == 0 && request.length % block == 0);
                }
            }
            RequestVerdict::Refuse { drain_bytes, .. } => {
                assert!(drain_bytes <= rules.drain_bytes_max);
                skip = drain_bytes;
            }
            RequestVerdict::Disconnect(_) => return,
        }
        input = &input[input.len().min(usize::try_from(skip).unwrap_or(usize::MAX))..];
    }
}

fn replies(style: ReplyStyle, mut input: &[u8]) {
    while let Ok(Some((reply, header_bytes))) = parse_reply(input, style) {
        assert!(header_bytes <= input.len() && header_bytes > 0, "consumed more than given");
        input = &input[header_bytes..];
        let follows = match reply {
            ServerReply::Data { length, .. } => length,
            ServerReply::Status { descriptor_bytes, width, .. } => {
                let there = input.len().min(descriptor_bytes as usize);
                millrace_nbd::status::descriptors(&input[..there], width).for_each(drop);
                descriptor_bytes
            }
            _ => 0,
        };
        input = &input[input.len().min(follows as usize)..];
    }
}

fn client(want: ReplyStyle, input: &[u8]) {
    let Ok(mut handshake) = ClientHandshake::new("disk", want) else { return };
    let mut out = Vec::new();
    if let Ok((used, progress)) = handshake.feed(input, &mut out) {
        assert!(used <= input.len(), "consumed more than given");
        if let ClientProgress::Ready(session) = progress {
            replies(session.style, &input[used..]);
        }
    }
}
