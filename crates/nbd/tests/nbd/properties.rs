//! Properties over random bytes: pieces do not matter, nothing panics, nothing over-consumes.

use proptest::prelude::*;

use super::{STYLES, context_data, disk, info_data, play, session, stream};
use millrace_nbd::client::{ClientHandshake, ServerReply, parse_reply};
use millrace_nbd::wire::*;
use millrace_nbd::{RequestLimits, check, parse};

fn option() -> impl Strategy<Value = (u32, Vec<u8>)> {
    let name = prop_oneof![Just("disk"), Just("ro"), Just(""), Just("none")];
    let query = prop_oneof![Just("base:"), Just("base:allocation"), Just("x-a:b")];
    let number = prop_oneof![4 => 0u32..13, 1 => any::<u32>()];
    prop_oneof![
        Just((OPT_STRUCTURED_REPLY, vec![])),
        Just((OPT_EXTENDED_HEADERS, vec![])),
        Just((OPT_LIST, vec![])),
        (name.clone(), proptest::collection::vec(0u16..5, 0..4))
            .prop_map(|(name, infos)| (OPT_INFO, info_data(name, &infos))),
        (name.clone(), proptest::collection::vec(query, 0..4), 9u32..11)
            .prop_map(|(name, queries, option)| (option, context_data(name, &queries))),
        name.prop_map(|name| (OPT_GO, info_data(name, &[]))),
        (number, proptest::collection::vec(any::<u8>(), 0..40)),
        Just((OPT_LIST, vec![9; 65_600])),
    ]
}

proptest! {
    #[test]
    fn the_outcome_does_not_depend_on_the_pieces(
        options in proptest::collection::vec(option(), 0..8),
        flags in 0u8..5,
        cuts in proptest::collection::vec(1usize..60, 0..200),
        tail in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = stream(&options);
        bytes[3] = flags;
        bytes.extend(tail);
        let whole = play(&bytes, &[]);
        prop_assert_eq!(&play(&bytes, &cuts), &whole);
        if bytes.len() < 4096 {
            prop_assert_eq!(&play(&bytes, &vec![1; bytes.len()]), &whole);
        }
    }

    #[test]
    fn random_bytes_never_panic_and_are_never_overconsumed(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        magic in 0usize..7,
        style in 0usize..3,
    ) {
        let style = STYLES[style];
        let magics = [
            SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, EXTENDED_REPLY_MAGIC, REQUEST_MAGIC,
            EXTENDED_REQUEST_MAGIC, 3, 0,
        ];
        let mut input = magics[magic].to_be_bytes().to_vec();
        input.extend(bytes);
        let _outcome = play(&input, &[3, 5, 7]);
        let session = session(style);
        if let Ok(Some((request, header_bytes))) = parse(&input, &session) {
            prop_assert!(header_bytes <= input.len());
            check(&request, &RequestLimits::new(&disk(), &session), &session);
        }
        if let Ok(Some((reply, header_bytes))) = parse_reply(&input, style) {
            prop_assert!(header_bytes <= input.len());
            if let ServerReply::Data { length, .. } = reply {
                prop_assert!((1..=64 << 20).contains(&length));
            }
        }
        let mut client = ClientHandshake::new("disk", style).unwrap();
        if let Ok((used, _)) = client.feed(&input, &mut Vec::new()) {
            prop_assert!(used <= input.len());
        }
    }

    #[test]
    fn uris_never_panic(text in "(nbd(\\+unix|s)?://)?[a-z0-9%:/?=&#@\\[\\]]{0,30}") {
        let _ = text.parse::<millrace_nbd::client::NbdUri>();
    }
}
