//! Tests of places: each distribution against its formula, the map against a set.

use proptest::prelude::*;

use super::*;

const DRAWS: u32 = 400_000;

/// Returns the number of draws of each block, with a fixed seed.
fn counts(text: &str, blocks: u64) -> Vec<f64> {
    let mut random = SplitMix64::new(7);
    let places = BlockSequence::new(distribution(text).unwrap(), blocks, &mut random);
    let mut counts = vec![0.0; blocks as usize];
    (0..DRAWS).for_each(|_| counts[places.draw(&mut random) as usize] += 1.0);
    counts
}

/// Pearson's chi-square of counts against shares that make 1.
fn chi_square(counts: &[f64], shares: &[f64]) -> f64 {
    let term = |(count, share): (&f64, &f64)| {
        let expected = share * f64::from(DRAWS);
        (count - expected).powi(2) / expected
    };
    counts.iter().zip(shares).map(term).sum()
}

/// With 99 degrees of freedom chi-square is above 160 once in ten thousand draws.
const CHI_MAX: f64 = 160.0;

#[test]
fn zipf_draws_rank_i_in_proportion_to_i_to_the_minus_theta() {
    for theta in [0.3, 0.99, 1.0, 1.2, 2.5] {
        let mut counts = counts(&format!("zipf:{theta}"), 100);
        counts.sort_by(|a, b| b.total_cmp(a));
        let sum: f64 = (1..=100).map(|i| f64::from(i).powf(-theta)).sum();
        let shares: Vec<f64> = (1..=100).map(|i| f64::from(i).powf(-theta) / sum).collect();
        let chi = chi_square(&counts, &shares);
        assert!(chi < CHI_MAX, "{theta}: {chi}");
    }
}

#[test]
fn a_centre_says_where_the_hottest_block_is() {
    for (text, hottest) in [("zipf:1.2:0.25", 25), ("pareto:0.2:0.5", 50), ("zipf:2:1", 0)] {
        let counts = counts(text, 100);
        let most = counts.iter().copied().fold(0.0, f64::max);
        assert_eq!(counts[hottest], most, "{text}");
    }
}

#[test]
fn pareto_gives_h_of_the_blocks_all_but_h_of_the_draws() {
    for h in [0.1, 0.2, 0.4] {
        let mut counts = counts(&format!("pareto:{h}"), 1000);
        counts.sort_by(|a, b| b.total_cmp(a));
        let hot: f64 = counts[..(h * 1000.0) as usize].iter().sum();
        let share = hot / f64::from(DRAWS);
        assert!((share - (1.0 - h)).abs() < 0.003, "{h}: {share}");
    }
}

#[test]
fn normal_has_its_mean_its_deviation_and_its_shape() {
    for (text, center) in [("normal:10", 500.0), ("normal:10:0.4", 400.0)] {
        let counts = counts(text, 1000);
        let draws = f64::from(DRAWS);
        let at = || counts.iter().enumerate().map(|(block, n)| (block as f64 + 0.5, n));
        let mean = at().map(|(x, n)| x * n).sum::<f64>() / draws;
        let deviation = (at().map(|(x, n)| (x - mean).powi(2) * n).sum::<f64>() / draws).sqrt();
        assert!((mean - center).abs() < 1.0, "{text}: {mean}");
        assert!((deviation - 100.0).abs() < 1.0, "{text}: {deviation}");
        let within: f64 = at().filter(|(x, _)| (x - center).abs() < 100.0).map(|(_, n)| n).sum();
        assert!((within / draws - 0.6827).abs() < 0.005, "{text}: {within}");
    }
}

#[test]
fn without_a_distribution_all_blocks_are_alike() {
    let chi = chi_square(&counts("random", 100), &[0.01; 100]);
    assert!(chi < CHI_MAX, "{chi}");
}

#[test]
fn numbers_that_make_no_distribution_are_refused() {
    for text in [
        "",
        "zipf",
        "zipf:0",
        "zipf:-1",
        "pareto:1",
        "normal:0",
        "zipf:1:2",
        "random:1",
        "zoned:1/2",
    ] {
        assert!(distribution(text).is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn every_draw_is_inside(blocks in 1u64..1 << 50, theta in 0.01f64..5.0, seed: u64) {
        let kinds = [
            Distribution::Uniform,
            Distribution::Zipf(theta, None),
            Distribution::Pareto(theta / 5.1, Some(1.0)),
            Distribution::Normal(theta * 20.0, Some(0.0)),
        ];
        let mut random = SplitMix64::new(seed);
        for kind in kinds {
            let places = BlockSequence::new(kind.clone(), blocks, &mut random);
            for _ in 0..20 {
                prop_assert!(places.draw(&mut random) < blocks, "{kind:?}");
            }
        }
    }

    #[test]
    fn ranks_are_spread_over_all_blocks(blocks in 1u64..3000, first in 0u64..3000) {
        let spread = ScatteredBlocks::new(blocks, first % blocks);
        let mut places: Vec<u64> = (0..blocks).map(|rank| spread.place(rank)).collect();
        prop_assert_eq!(places[0], first % blocks);
        places.sort_unstable();
        prop_assert_eq!(places, (0..blocks).collect::<Vec<_>>());
    }

    #[test]
    fn a_map_finds_what_a_set_finds(
        blocks in 1u64..9000,
        from in prop::collection::vec(0u64..9000, 0..200),
    ) {
        let mut map = Map::new(blocks);
        let mut free: std::collections::BTreeSet<u64> = (0..blocks).collect();
        for from in from {
            let from = from % blocks;
            let expected = free.range(from..).next().or(free.first()).copied();
            prop_assert_eq!(map.free_from(from), expected);
            if let Some(block) = expected {
                prop_assert!(map.is_free(block));
                map.take(block);
                free.remove(&block);
                prop_assert!(!map.is_free(block));
            }
        }
        while let Some(block) = map.free_from(0) {
            prop_assert!(free.remove(&block));
            map.take(block);
        }
        prop_assert!(free.is_empty());
    }
}

#[test]
fn zones_share_ios_and_nothing_lies_behind_the_last() {
    let mut random = SplitMix64::new(1);
    let zones = distribution("zoned:50/5:30/15:20/60").unwrap();
    let places = BlockSequence::new(zones, 1000, &mut random);
    let mut counts = [0; 4];
    for _ in 0..100_000 {
        let zone = match places.draw(&mut random) {
            0..50 => 0,
            50..200 => 1,
            200..800 => 2,
            _ => 3,
        };
        counts[zone] += 1;
    }
    for (count, expected) in counts.iter().zip([50_000i32, 30_000, 20_000, 0]) {
        assert!((count - expected).abs() <= expected / 50, "{counts:?}");
    }
    let open = distribution("zoned:60/10:40/").unwrap();
    assert_eq!(open, Distribution::Zoned(vec![(60, 10), (100, 100)]));
    for text in ["zoned:50/50", "zoned:", "zoned:60/60:40/60", "zoned:x/1", "zoned_abs:100/1m"] {
        assert!(distribution(text).is_err(), "{text}");
    }
}
