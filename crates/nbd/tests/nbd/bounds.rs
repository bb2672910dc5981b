//! Every bound of the protocol core at its edge: the last that is taken, the first that is not.

use super::{
    answers, catalog, context_data, disk, feed_whole, info_data, negotiate, session, stream,
};
use millrace_nbd::client::{ServerReply, parse_reply};
use millrace_nbd::export::ExportCatalog;
use millrace_nbd::handshake::{ANSWER_BYTES_MAX, INPUT_BYTES_MAX};
use millrace_nbd::option::{ContextRequest, InfoRequest};
use millrace_nbd::wire::*;
use millrace_nbd::{
    Command, ExportInfo, Handshake, Progress, ProtocolError, ReplyStyle, Request, RequestLimits,
    RequestVerdict, WantedExport, check,
};

/// The error of an export after a change; `None` if it is valid.
fn wrong(change: impl FnOnce(&mut ExportInfo)) -> Option<&'static str> {
    let mut export = disk();
    change(&mut export);
    match export.validate() {
        Ok(()) => None,
        Err(ProtocolError::BadField { what, .. }) => Some(what),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn exports_are_taken_up_to_each_of_their_bounds() {
    let blocks = |min, preferred, max, size| {
        wrong(|export| {
            (export.block_min, export.block_preferred) = (min, preferred);
            (export.block_max, export.size_bytes) = (max, size);
        })
    };
    const GIB: u64 = 1 << 30;
    let (min, preferred, max) =
        ("minimum block size", "preferred block size", "maximum block size");
    for (sizes, expected) in [
        ((1, 512, 512, GIB), None),
        ((65_536, 65_536, 65_536, GIB), None),
        ((131_072, 131_072, 1 << 25, GIB), Some(min)),
        ((768, 4096, 768 * 64, GIB), Some(min)),
        ((512, 256, 1 << 25, GIB), Some(preferred)),
        ((1, 256, 1 << 25, GIB), Some(preferred)),
        ((4096, 2048, 1 << 25, GIB), Some(preferred)),
        ((512, 1536, 1 << 25, GIB), Some(preferred)),
        ((512, 4096, 4096, GIB), None),
        ((512, 4096, 3584, GIB), Some(max)),
        ((512, 4096, 3584, 3584), None),
        ((512, 4096, 3584, 3585), Some(max)),
        ((512, 4096, 4100, GIB), Some(max)),
        ((512, 4096, u32::MAX, GIB), None),
        ((512, 4096, 0, 0), Some(max)),
        ((512, 4096, 512, 0), None),
    ] {
        assert_eq!(blocks(sizes.0, sizes.1, sizes.2, sizes.3), expected, "{sizes:?}");
    }
    assert_eq!(wrong(|export| export.name = "a".repeat(4096)), None);
    assert_eq!(wrong(|export| export.name = "a".repeat(4097)), Some("export name"));
    assert_eq!(wrong(|export| export.description = "a".repeat(4097)), Some("description"));
    assert_eq!(wrong(|export| export.description = "\0".to_owned()), Some("description"));
}

#[test]
fn a_catalog_finds_its_exports_by_name_and_the_first_by_none() {
    let exports = catalog();
    assert_eq!(
        ["", "disk", "ro", "no"].map(|name| exports.find(name)),
        [Some(0), Some(0), Some(1), None]
    );
    assert_eq!((ExportCatalog::len(&exports), ExportCatalog::is_empty(&exports)), (2, false));
    assert_eq!([0, 2].map(|index| exports.size_bytes(index)), [1 << 30, 0]);
    let none = Vec::<ExportInfo>::new();
    assert_eq!((ExportCatalog::is_empty(&none), none.find("")), (true, None));
}

/// Exports whose list takes `bytes` bytes.
fn list_of(mut bytes: usize) -> Vec<ExportInfo> {
    let mut exports = Vec::new();
    while bytes > 0 {
        // Of each a header of 20, a length of 4, a name of 4, and its description.
        let description = "x".repeat(4096.min(bytes - 28));
        let name = format!("{:04}", exports.len());
        bytes -= 28 + description.len();
        exports.push(ExportInfo { name, description, ..disk() });
        assert!(bytes == 0 || bytes >= 28, "there is no export of {bytes} bytes");
    }
    exports
}

#[test]
fn lists_go_in_parts_and_answers_have_8_mib() {
    assert_eq!(ANSWER_BYTES_MAX, 8 << 20);
    let listed = |bytes: usize, times| {
        let (options, mut out) = (stream(&vec![(OPT_LIST, vec![]); times]), Vec::new());
        let mut handshake = Handshake::new();
        let (part, end) = feed_whole(&mut handshake, &list_of(bytes), &options, &mut out);
        // The rest of one list, its end, and the first part of the next.
        assert!(part <= 2 * (64 << 10) + 4096 + 48, "{part}");
        (out.len(), end)
    };
    assert_eq!(listed(4 << 20, 1), ((4 << 20) + 20, Ok(Progress::NeedMore)));
    assert_eq!(listed(16 << 20, 1).1, Ok(Progress::NeedMore));
    let of_each = |one: &ExportInfo| 1024 + one.name.len() + one.description.len();
    let max = (8 << 20) + list_of(4 << 20).iter().map(of_each).sum::<usize>();
    assert_eq!(listed(4 << 20, 3), (3 * ((4 << 20) + 20), Ok(Progress::NeedMore)));
    assert_eq!(listed(4 << 20, 4).1, Err(ProtocolError::TooManyReplyBytes(max)));
    assert!(max < 4 * (4 << 20), "{max}");
}

/// A catalog that has an export only once it was asked for it.
struct Opening(Vec<ExportInfo>, bool);

impl ExportCatalog for Opening {
    fn len(&self) -> usize {
        if self.1 { self.0.len() } else { 0 }
    }

    fn get(&self, index: usize) -> Option<&ExportInfo> {
        self.0.get(index).filter(|_| self.1)
    }

    fn is_pending(&self, wanted: WantedExport<'_>) -> bool {
        !self.1 && (wanted == WantedExport::List || wanted == WantedExport::Export("b"))
    }

    fn why_refused(&self, name: &str) -> Option<String> {
        (name == "z").then(|| "z: there is no such file".to_owned())
    }
}

#[test]
fn option_waits_for_an_opening_export_and_is_answered_once() {
    let name = |name: &str| info_data(name, &[]);
    let first = catalog().remove(0).name;
    let bytes = stream(&[(OPT_INFO, name("z")), (OPT_LIST, vec![]), (OPT_GO, name(&first))]);
    let (mut catalog, mut handshake, mut out) =
        (Opening(catalog(), false), Handshake::new(), Vec::new());
    let (used, progress) = handshake.feed(&catalog, &bytes, &mut out).unwrap();
    assert_eq!(progress, Progress::Pending);
    assert_eq!(Handshake::wanted(&bytes[used..]), Some(WantedExport::List));
    assert_eq!(answers(&out).len(), 1);
    assert!(String::from_utf8_lossy(&out).ends_with("z: there is no such file"));
    assert_eq!(handshake.feed(&catalog, &bytes[used..], &mut out), Ok((0, Progress::Pending)));
    catalog.1 = true;
    let (rest, progress) = handshake.feed(&catalog, &bytes[used..], &mut out).unwrap();
    assert!(matches!(progress, Progress::Ready(_)), "{progress:?}");
    assert_eq!(used + rest, bytes.len());
}

#[test]
fn options_are_looked_at_up_to_64_kib_and_skipped_up_to_1_mib() {
    assert_eq!(INPUT_BYTES_MAX, 65_552);
    let kind = |len: usize| answers(&negotiate(&[(OPT_LIST, vec![0; len])]).0)[0].1;
    assert_eq!(
        [65_536, 65_537, 1 << 20].map(kind),
        [REP_ERR_INVALID, REP_ERR_TOO_BIG, REP_ERR_TOO_BIG]
    );
    let end = negotiate(&[(OPT_LIST, vec![0; (1 << 20) + 1])]).1;
    assert!(matches!(end, Err(ProtocolError::OptionTooLong { .. })), "{end:?}");
    let options = |count| negotiate(&vec![(OPT_STARTTLS, vec![]); count]).1;
    // Four more for each of two exports.
    assert_eq!(options(4104), Ok(Progress::NeedMore));
    assert_eq!(options(4105), Err(ProtocolError::TooManyOptions(4104)));
}

#[test]
fn names_of_4096_bytes_are_looked_up_and_longer_ones_refused() {
    let name = |len| "a".repeat(len);
    let why = |len| match negotiate(&[(OPT_EXPORT_NAME, name(len).into_bytes())]).1 {
        Err(ProtocolError::ExportName(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(4096), "no such export");
    assert_eq!(why(4097), "the name is longer than 4096 bytes");
    let info = |len| InfoRequest::parse(&info_data(&name(len), &[])).map(|one| one.name.len());
    assert_eq!(info(4096), Ok(4096));
    assert_eq!(info(4097).unwrap_err().why, "the export name is longer than 4096 bytes");
    assert_eq!(info(5000).unwrap_err().why, "the export name is longer than 4096 bytes");
}

#[test]
fn what_a_client_wants_to_know_is_told_apart() {
    let wants = |infos: &[u16]| {
        let data = info_data("x", infos);
        let request = InfoRequest::parse(&data).unwrap();
        assert_eq!(request.name, "x");
        (request.wants(INFO_NAME), request.wants(INFO_BLOCK_SIZE), request.wants(INFO_DESCRIPTION))
    };
    assert_eq!(wants(&[]), (false, false, false));
    assert_eq!(wants(&[INFO_NAME]), (true, false, false));
    assert_eq!(wants(&[INFO_BLOCK_SIZE]), (false, true, false));
    assert_eq!(wants(&[INFO_DESCRIPTION, INFO_EXPORT]), (false, false, true));
    let selects = |queries: &[&str]| {
        let data = context_data("x", queries);
        let request = ContextRequest::parse(&data).unwrap();
        (request.queries, request.exact, request.wildcard)
    };
    assert_eq!(selects(&[]), (0, false, false));
    assert_eq!(selects(&["base:allocation", "b"]), (2, true, false));
    assert_eq!(selects(&["base:", "b"]), (2, false, true));
    assert_eq!(selects(&["base:allocation", "base:"]), (2, true, true));
}

#[test]
fn block_sizes_stay_agreed_and_long_selections_select_nothing() {
    let session = |options: &[(u32, Vec<u8>)]| match negotiate(options).1 {
        Ok(Progress::Ready(session)) => session,
        other => panic!("{other:?}"),
    };
    let go = (OPT_GO, info_data("", &[]));
    let asks = (OPT_INFO, info_data("", &[INFO_BLOCK_SIZE]));
    assert!(!session(std::slice::from_ref(&go)).block_sizes);
    assert!(session(&[asks, go.clone()]).block_sizes);
    assert!(session(&[(OPT_GO, info_data("", &[INFO_BLOCK_SIZE]))]).block_sizes);
    let structured = (OPT_STRUCTURED_REPLY, vec![]);
    let select = (OPT_SET_META_CONTEXT, context_data("", &["base:allocation"]));
    for (option, selected) in [(OPT_SET_META_CONTEXT, None), (OPT_LIST, Some(1))] {
        let long = (option, vec![0; 70_000]);
        let options = [structured.clone(), select.clone(), long, go.clone()];
        assert_eq!(session(&options).base_allocation, selected);
    }
}

#[test]
fn payloads_are_taken_up_to_32_mib_and_thrown_away_up_to_64() {
    let session = session(ReplyStyle::Simple);
    let rules = RequestLimits::new(&ExportInfo { block_max: u32::MAX, ..disk() }, &session);
    assert_eq!((rules.payload_bytes_max, rules.drain_bytes_max), (32 << 20, 64 << 20));
    let small = RequestLimits::new(&ExportInfo { block_max: 1 << 20, ..disk() }, &session);
    assert_eq!(small.payload_bytes_max, 1 << 20);
    let verdict = |command, length| {
        let request = Request { cookie: 1, flags: 0, command, offset: 0, length };
        check(&request, &rules, &session)
    };
    for command in [Command::Read, Command::Write] {
        assert_eq!(verdict(command, 32 << 20), RequestVerdict::Accept);
        assert!(matches!(verdict(command, (32 << 20) + 512), RequestVerdict::Refuse { .. }));
    }
    assert_eq!(verdict(Command::Trim, 33 << 20), RequestVerdict::Accept);
    let refused = verdict(Command::Write, 64 << 20);
    assert!(
        matches!(refused, RequestVerdict::Refuse { drain_bytes: 0x400_0000, .. }),
        "{refused:?}"
    );
    assert!(matches!(verdict(Command::Write, (64 << 20) + 1), RequestVerdict::Disconnect(_)));
}

/// A chunk of a server's reply. Payload beyond the given bytes is zeroes.
fn chunk(style: ReplyStyle, kind: u16, length: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let flags_and_kind = [REPLY_FLAG_DONE, kind].map(u16::to_be_bytes).concat();
    match style {
        ReplyStyle::Extended => {
            bytes.extend(EXTENDED_REPLY_MAGIC.to_be_bytes());
            bytes.extend(flags_and_kind);
            bytes.extend([9u64, 0, length].map(u64::to_be_bytes).concat());
        }
        _ => {
            bytes.extend(STRUCTURED_REPLY_MAGIC.to_be_bytes());
            bytes.extend(flags_and_kind);
            bytes.extend(9u64.to_be_bytes());
            bytes.extend((length as u32).to_be_bytes());
        }
    }
    bytes.extend(payload);
    bytes.resize(bytes.len() + 10_000, 0);
    bytes
}

/// Does a client accept this chunk?
fn takes(style: ReplyStyle, kind: u16, length: u64, payload: &[u8]) -> bool {
    match parse_reply(&chunk(style, kind, length, payload), style) {
        Ok(Some(_)) => true,
        Ok(None) => panic!("all of it is there"),
        Err(_) => false,
    }
}

#[test]
fn a_client_takes_chunks_up_to_each_of_their_bounds() {
    use ReplyStyle::{Extended, Structured};
    let data = |length| takes(Extended, REPLY_TYPE_OFFSET_DATA, length, &[]);
    let lengths = [0, 7, 8, 9, (64 << 20) + 8, (64 << 20) + 9, u64::MAX];
    assert_eq!(lengths.map(data), [false, false, false, true, true, false, false]);
    let none = |length| takes(Structured, REPLY_TYPE_NONE, length, &[]);
    assert_eq!([0, 1].map(none), [true, false]);
    let hole = |length, size| {
        takes(Structured, REPLY_TYPE_OFFSET_HOLE, length, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, size])
    };
    assert_eq!([hole(12, 1), hole(12, 0), hole(11, 1), hole(13, 1)], [true, false, false, false]);
    let narrow = |length| takes(Structured, REPLY_TYPE_BLOCK_STATUS, length, &[]);
    const MOST: u64 = 1 << 20;
    let lengths = [3, 4, 8, 12, 16, 20, 4 + 8 * MOST, 4 + 8 * (MOST + 1)];
    assert_eq!(lengths.map(narrow), [false, false, false, true, false, true, true, false]);
    let wide = |length, said: u32| {
        let payload = [1, said].map(u32::to_be_bytes).concat();
        takes(Extended, REPLY_TYPE_BLOCK_STATUS_EXT, length, &payload)
    };
    let found = [wide(24, 1), wide(24, 0), wide(24, 2), wide(40, 2), wide(32, 1), wide(8, 0)];
    assert_eq!(found, [true, true, false, true, false, false]);
    assert!(!takes(Structured, REPLY_TYPE_BLOCK_STATUS_EXT, 24, &[0; 8]), "extended only");
    assert!(!takes(Structured, 3, 8, &[]), "no type of the protocol");
}

#[test]
fn a_client_takes_errors_with_messages_that_fit() {
    let error = |kind, length: u64, message: u16| {
        let payload = [&5u32.to_be_bytes()[..], &message.to_be_bytes()].concat();
        takes(ReplyStyle::Structured, kind, length, &payload)
    };
    for (kind, tail) in [(REPLY_TYPE_ERROR, 0), (REPLY_TYPE_ERROR_OFFSET, 8)] {
        assert_eq!([5, 6, 7].map(|length| error(kind, tail + length, 0)), [false, true, true]);
        assert_eq!(
            [10, 11, 12].map(|message| error(kind, tail + 17, message)),
            [true, true, false]
        );
        assert_eq!([8192, 8193].map(|length| error(kind, length, 0)), [true, false]);
    }
    let bytes = chunk(
        ReplyStyle::Structured,
        REPLY_TYPE_ERROR_OFFSET,
        16,
        b"\0\0\0\x05\0\x02no\0\0\0\0\0\0\x02\x01",
    );
    let Ok(Some((reply, 36))) = parse_reply(&bytes, ReplyStyle::Structured) else {
        panic!("{:?}", parse_reply(&bytes, ReplyStyle::Structured));
    };
    assert!(matches!(reply, ServerReply::Error { at: Some(513), message: "no", last: true, .. }));
}

#[test]
fn refusals_are_told_in_words() {
    let words =
        |option, code| ProtocolError::Refused { option, code, message: String::new() }.to_string();
    for (option, asked) in [
        (OPT_GO, "the export"),
        (OPT_EXPORT_NAME, "the export"),
        (OPT_LIST, "the list of its exports"),
        (OPT_STRUCTURED_REPLY, "structured replies"),
        (OPT_EXTENDED_HEADERS, "extended headers"),
    ] {
        for (code, why) in [
            (REP_ERR_UNSUP, "the server does not know the option"),
            (REP_ERR_POLICY, "its configuration forbids it"),
            (REP_ERR_INVALID, "the server considers the request invalid"),
            (REP_ERR_PLATFORM, "the server's platform does not support the option"),
            (REP_ERR_UNKNOWN, "there is no such export"),
            (REP_ERR_SHUTDOWN, "it is about to stop"),
            (REP_ERR_BLOCK_SIZE_REQD, "the server demands that block sizes"),
            (REP_ERR_TOO_BIG, "the request is too large"),
            (REP_ERR_EXT_HEADER_REQD, "it demands extended headers"),
        ] {
            let text = words(option, code);
            assert!(text.contains(&format!("the server refused {asked}: {why}")), "{text}");
        }
        let text = words(option, REP_ERR_TLS_REQD);
        assert_eq!(text, "the server accepts only clients with TLS");
        let text = words(option, 0x8000_0077);
        assert!(text.contains(&format!("refused {asked} with code 0x80000077")), "{text}");
    }
    assert!(words(99, 0x8000_0077).contains("refused option 99 with code 0x80000077"));
    let said =
        ProtocolError::Refused { option: OPT_GO, code: REP_ERR_POLICY, message: "no".to_owned() };
    assert!(said.to_string().contains("(it says: no)"));
    assert!(!words(OPT_GO, REP_ERR_POLICY).contains("it says"));
    let known = |names: &[&str]| {
        let known = names.iter().map(|&name| name.to_owned()).collect();
        ProtocolError::NoExport { name: "x".to_owned(), known }.to_string()
    };
    assert!(known(&[]).contains("the server does not list its exports"));
    assert!(known(&["a", "b"]).contains("there are \"a\", \"b\""));
}

/// A catalog whose list is there while it is asked for, and gone afterwards.
struct Listing(std::cell::Cell<usize>);

impl ExportCatalog for Listing {
    fn len(&self) -> usize {
        0
    }

    fn get(&self, _: usize) -> Option<&ExportInfo> {
        None
    }

    fn listed(&self) -> usize {
        self.0.get()
    }

    fn listing(&self, _: usize) -> Option<(&str, &str)> {
        Some(("x", ""))
    }
}

#[test]
fn a_client_may_ask_for_each_export_of_a_list_that_it_was_given() {
    let (catalog, mut handshake) = (Listing(3000.into()), Handshake::new());
    let mut out = Vec::new();
    let (_, end) = feed_whole(&mut handshake, &catalog, &stream(&[(OPT_LIST, vec![])]), &mut out);
    assert_eq!(end, Ok(Progress::NeedMore));
    catalog.0.set(0);
    let asks = vec![(OPT_INFO, info_data("x", &[])); 4096 + 4 * 3000 - 1];
    let bytes = stream(&asks).split_off(4);
    let (_, end) = feed_whole(&mut handshake, &catalog, &bytes, &mut out);
    assert_eq!(end, Ok(Progress::NeedMore));
    let one = stream(&[(OPT_INFO, info_data("x", &[]))]).split_off(4);
    let (_, end) = feed_whole(&mut handshake, &catalog, &one, &mut out);
    assert_eq!(end, Err(ProtocolError::TooManyOptions(4096 + 4 * 3000)));
}
