//! Counting, choosing, merging, keeping on disk, coverage.

use std::fs;

use super::*;
use tempfile::tempdir;

#[test]
fn the_default_size_is_an_eighth_within_bounds() {
    let sizes = [1, 5000, 8192, 49_152, 65_536, 151_936, 248_320].map(default_size);
    assert_eq!(sizes, [1, 5000, 8192, 8192, 8192, 18_992, 31_040]);
}

#[test]
fn without_traffic_the_lowest_ids_and_the_required_ones_are_chosen() {
    let counts = TokenCounts::new(100);
    let chosen = counts.choose(6, &[99, 2, 99, 100, u32::MAX]);
    assert_eq!(chosen.ids(), [0, 1, 2, 3, 4, 99]);
    assert_eq!(counts.choose(0, &[7]).ids(), [7]);
    assert!(counts.choose(0, &[]).ids().is_empty());
    let whole = counts.choose(1000, &[]);
    assert!(whole.is_whole() && whole.ids().len() == 100);
    assert!(!chosen.is_whole());
}

#[test]
fn traffic_moves_tokens_in_and_the_highest_unseen_ids_out() {
    let mut counts = TokenCounts::new(1000);
    counts.add_generated(&[500, 600, 600, 7, 5000]);
    counts.add_prompt(&[700, 700]);
    assert_eq!(counts.choose(7, &[]).ids(), [0, 1, 2, 7, 500, 600, 700]);
    assert_eq!(counts.choose(3, &[]).ids(), [7, 500, 600]);
    // Two tokens of a prompt are worth less than one of an answer.
    assert_eq!(counts.choose(1, &[]).ids(), [600]);
    assert_eq!(counts.choose(2, &[999]).ids(), [600, 999]);
    assert!((counts.weight() - 4.1).abs() < 1e-3, "{}", counts.weight());
}

#[test]
fn the_choice_is_that_of_a_sort() {
    let mut counts = TokenCounts::new(5000);
    let text: Vec<u32> = (0..40_000_u64)
        .map(|i| (i * i * 7919 % 4999) as u32)
        .collect();
    counts.add_generated(&text);
    let mut tally = vec![0; 5000];
    text.iter().for_each(|&token| tally[token as usize] += 1);
    // Fading distinguishes equal tallies, so the reference uses the counts themselves.
    let mut order: Vec<u32> = (0..5000).collect();
    order.sort_by(|&a, &b| {
        let count = |token: u32| counts.counts[token as usize];
        count(b).total_cmp(&count(a)).then(a.cmp(&b))
    });
    for size in [1, 63, 64, 1000, 4999, 5000] {
        let chosen = counts.choose(size, &[]);
        let mut expected = order[..size].to_vec();
        expected.sort_unstable();
        assert_eq!(chosen.ids(), expected);
        let most = chosen
            .ids()
            .iter()
            .map(|&t| tally[t as usize])
            .min()
            .unwrap();
        let outside = (0..5000).filter(|&t| !chosen.contains(t));
        assert!(outside.map(|t| tally[t as usize]).max().unwrap_or(0) <= most + 1);
    }
}

#[test]
fn old_traffic_fades_by_half_in_a_half_life() {
    let mut counts = TokenCounts::new(10);
    counts.add_generated(&vec![1; 50_000]);
    let before = counts.counts[1];
    let unit = counts.unit;
    counts.add_generated(&vec![2; HALF_LIFE as usize]);
    let share = f64::from(counts.counts[1] / before) / (counts.unit / unit);
    assert!((share - 0.5).abs() < 1e-3, "{share}");
    // Long enough for several normalisations; the total stays the counts' sum and finite.
    counts.add_generated(&vec![3; 12 * HALF_LIFE as usize]);
    assert!(counts.unit <= LARGEST_UNIT);
    let steady = HALF_LIFE / std::f64::consts::LN_2;
    assert!(
        (counts.weight() / steady - 1.0).abs() < 0.02,
        "{}",
        counts.weight()
    );
    assert_eq!(counts.choose(1, &[]).ids(), [3]);
    assert!(f64::from(counts.counts[1]) / counts.unit < 20.0);
}

#[test]
fn what_a_choice_misses_of_the_traffic_is_known() {
    let mut counts = TokenCounts::new(1000);
    let chosen = counts.choose(100, &[]);
    assert_eq!(counts.share_outside(&chosen), 0.0);
    counts.add_generated(&[5, 6, 7, 800]);
    assert!((counts.share_outside(&chosen) - 0.25).abs() < 1e-4);
    assert!(counts.share_outside(&counts.choose(100, &[])) < 1e-6);
}

#[test]
fn membership_is_that_of_the_ids() {
    let chosen = DraftVocabulary::new(vec![130, 0, 64, 63, 0, 200], 131);
    assert_eq!(chosen.ids(), [0, 63, 64, 130]);
    let inside: Vec<u32> = (0..300).filter(|&token| chosen.contains(token)).collect();
    assert_eq!(inside, chosen.ids());
    assert!(!chosen.contains(u32::MAX));
}

#[test]
fn a_request_adds_the_latest_rare_tokens_of_its_prompt() {
    let base = DraftVocabulary::new(vec![2, 4, 6, 8], 100);
    let prompt = [50, 9, 4, 1, 9, 60, 4, 1, 1, 100, u32::MAX];
    let request = base.for_request(&prompt, 3);
    assert_eq!(request.extra(), [1, 9, 60]);
    assert_eq!(request.ids(), [1, 2, 4, 6, 8, 9, 60]);
    assert!(request.contains(9) && request.contains(8) && !request.contains(50));

    let mut merged = vec![9.0];
    let base_row = [0.2, 0.4, 0.6, 0.8];
    assert!(request.merge(&base_row, &[0.1, 0.9, 6.0], &mut merged));
    assert_eq!(merged, [0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 6.0]);
    assert!(!request.merge(&base_row[1..], &[0.1, 0.9, 6.0], &mut merged));
    assert!(!request.merge(&base_row, &[], &mut merged));
    assert!(merged.is_empty());
    let none = base.for_request(&prompt, 0);
    assert!(none.merge(&base_row, &[], &mut merged));
    assert_eq!(merged, base_row);
}

#[test]
fn counts_survive_the_disk() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("counts.bin");
    assert_eq!(TokenCounts::load(&path, 300, 7), TokenCounts::new(300));
    let mut counts = TokenCounts::new(300);
    counts.add_generated(&[299, 4, 4, 250]);
    counts.add_prompt(&[17]);
    counts.save(&path, 7).unwrap();
    let loaded = TokenCounts::load(&path, 300, 7);
    assert_eq!(loaded.choose(3, &[]), counts.choose(3, &[]));
    assert!((loaded.weight() - counts.weight()).abs() < 1e-4);
    assert!(loaded.counts[17] > 0.0);

    counts.add_generated(&[8; 9]);
    counts.save(&path, 7).unwrap();
    assert_eq!(TokenCounts::load(&path, 300, 7).choose(1, &[]).ids(), [8]);
    // Nothing is left beside it.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn another_tokenizers_counts_are_not_used() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("counts.bin");
    let mut counts = TokenCounts::new(300);
    counts.add_generated(&[299]);
    counts.save(&path, 7).unwrap();
    assert_eq!(TokenCounts::load(&path, 300, 8), TokenCounts::new(300));
    assert_eq!(TokenCounts::load(&path, 299, 7), TokenCounts::new(299));
    assert_eq!(TokenCounts::load(&path, 301, 7), TokenCounts::new(301));
}

#[test]
fn a_damaged_file_is_a_fresh_start() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("counts.bin");
    let fresh = TokenCounts::new(300);
    let mut counts = TokenCounts::new(300);
    counts.add_generated(&[299, 4, 4, 250]);
    let good = counts.bytes(7);
    let load = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        TokenCounts::load(&path, 300, 7)
    };
    assert_ne!(load(&good), fresh);
    for length in 0..good.len() {
        assert_eq!(load(&good[..length]), fresh, "cut to {length}");
    }
    for place in 0..good.len() {
        let mut bad = good.clone();
        bad[place] ^= 0x41;
        assert_eq!(load(&bad), fresh, "byte {place}");
    }
    let mut long = good.clone();
    long.extend_from_slice(&[0; 5000]);
    assert_eq!(load(&long), fresh);
    // A folder in the file's place.
    assert_eq!(TokenCounts::load(folder.path(), 300, 7), fresh);
}

#[test]
fn contents_that_lie_are_refused_despite_a_right_checksum() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("counts.bin");
    let mut counts = TokenCounts::new(300);
    counts.add_generated(&[4]);
    let good = counts.bytes(7);
    let lies: [(usize, [u8; 4]); 5] = [
        (24, u32::MAX.to_le_bytes()),
        (28, 300_u32.to_le_bytes()),
        (32, f32::NAN.to_le_bytes()),
        (32, (-1.0_f32).to_le_bytes()),
        (32, f32::INFINITY.to_le_bytes()),
    ];
    for (place, lie) in lies {
        let mut bytes = good[..good.len() - 8].to_vec();
        bytes[place..place + 4].copy_from_slice(&lie);
        let checksum = file::fnv1a(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        let loaded = TokenCounts::load(&path, 300, 7);
        assert_eq!(loaded, TokenCounts::new(300), "{place}");
    }
}

#[test]
fn a_save_that_fails_leaves_nothing() {
    let folder = tempdir().unwrap();
    let counts = TokenCounts::new(300);
    assert!(
        counts
            .save(&folder.path().join("missing/counts.bin"), 7)
            .is_err()
    );
    // A folder cannot be replaced by a file.
    let taken = folder.path().join("taken");
    fs::create_dir_all(taken.join("inside")).unwrap();
    assert!(counts.save(&taken, 7).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn coverage_turns_to_the_whole_vocabulary_and_back() {
    let mut coverage = Coverage::new(CoverageConstants::default());
    // One name in the first sentence.
    for place in 0..100 {
        coverage.observe(place != 3 && place != 4);
        assert!(!coverage.wants_whole(), "{place}");
    }
    // Foreign text: one token in five is outside.
    let mut turned = None;
    for place in 0..200 {
        coverage.observe(place % 5 != 0);
        if coverage.wants_whole() && turned.is_none() {
            turned = Some(place);
        }
    }
    assert!(turned.is_some_and(|place| place < 100), "{turned:?}");
    assert!(coverage.wants_whole());
    assert!((coverage.share_outside() - 0.2).abs() < 0.05);
    // Between the limits nothing changes; under them it turns back.
    for place in 0..400 {
        coverage.observe(place % 20 != 0);
        assert!(coverage.wants_whole());
    }
    for _ in 0..100 {
        coverage.observe(true);
    }
    assert!(!coverage.wants_whole());
}
