use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;

fn read(value: Value, head_dim: usize, context: usize) -> Result<RopeConfig, ModelError> {
    let source = ConfigSource::Json {
        path: PathBuf::from("config.json"),
        value,
    };
    RopeConfig::read(&source, head_dim, context)
}

fn assert_close(config: &RopeConfig, expected: &[(usize, f64)]) {
    let (frequencies, _) = config.inverse_frequencies();
    for (i, value) in expected {
        let found = f64::from(frequencies[*i]);
        assert!(
            (found / value - 1.0).abs() < 2e-5,
            "frequency {i}: {found} instead of {value}"
        );
    }
}

#[test]
fn the_base_may_stand_at_the_top_or_inside() {
    assert_eq!(
        read(json!({"rope_theta": 5e5}), 64, 4096).unwrap().theta,
        5e5
    );
    assert_eq!(
        read(
            json!({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}),
            64,
            4096
        )
        .unwrap()
        .theta,
        1e6
    );
    assert_eq!(read(json!({}), 64, 4096).unwrap().theta, 1e4);
}

/// Expected values: the formulas evaluated in double precision by a separate program.
#[test]
fn yarn_follows_the_paper() {
    let config = read(
        json!({"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}),
        64,
        131_072,
    )
    .unwrap();
    assert_close(
        &config,
        &[
            (0, 1.0),
            (5, 0.115_478_198_468_945_8),
            (11, 0.008_659_643_233_600_653),
            (12, 0.005_154_795_480_911_533),
            (15, 0.001_026_617_684_039_661_4),
            (19, 9.128_065_447_547_873e-5),
            (20, 4.445_698_525_097_307e-5),
            (31, 3.849_816_315_148_69e-7),
        ],
    );
    let (_, attention) = config.inverse_frequencies();
    assert!((attention - 1.138_629_4).abs() < 1e-6);
}

#[test]
fn llama3_keeps_high_and_stretches_low_frequencies() {
    let config = read(
        json!({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}),
        128,
        131_072,
    )
    .unwrap();
    assert_close(
        &config,
        &[
            (0, 1.0),
            (20, 0.016_560_440_080_994_446),
            (28, 0.003_211_445_994_752_591),
            (29, 0.002_166_570_763_503_359),
            (30, 0.001_371_893_567_761_138),
            (32, 0.000_524_846_160_992_954_7),
            (34, 0.000_178_507_812_767_996_4),
            (40, 3.428_102_195_952_591e-5),
            (63, 3.068_925_988_914_511e-7),
        ],
    );
}

#[test]
fn linear_divides_all() {
    let config = read(
        json!({"rope_scaling": {"type": "linear", "factor": 2.0}}),
        64,
        8192,
    )
    .unwrap();
    assert_close(&config, &[(0, 0.5), (16, 0.005)]);
}

#[test]
fn what_is_not_supported_or_wrong_is_named() {
    let longrope = read(
        json!({"rope_scaling": {"type": "longrope", "factor": 2.0}}),
        64,
        8192,
    )
    .unwrap_err();
    assert!(
        longrope.to_string().contains("longrope") && longrope.to_string().contains("yarn"),
        "{longrope}"
    );
    for bad in [
        json!({"rope_scaling": {"type": "linear"}}),
        json!({"rope_scaling": {"type": "linear", "factor": "two"}}),
        json!({"rope_scaling": {"type": 3}}),
        json!({"rope_theta": 0.0}),
        json!({"rope_theta": "big"}),
        json!({"partial_rotary_factor": 7}),
        json!({"partial_rotary_factor": 0.0}),
        json!({"rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 0.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}}),
    ] {
        assert!(read(bad.clone(), 64, 8192).is_err(), "{bad}");
    }
}
