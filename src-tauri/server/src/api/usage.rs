//! The `usage` object: OpenAI's fields and the measured times.

use std::time::Duration;

use headstart_engine::{
    request::{MtpReport, Usage},
    specprefill::{Scorer, SkipReason, SpecPrefillReport},
};
use serde_json::{Value, json};

/// Seconds with microsecond precision.
fn seconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e6
}

fn rate(rate: Option<f64>) -> Option<f64> {
    rate.map(|rate| (rate * 1e3).round() / 1e3)
}

/// `number` without the digits that a float has beyond its precision.
fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

/// `part` for each of `whole`; nothing when there is nothing to divide by.
fn share(part: f64, whole: usize) -> Option<f64> {
    (whole > 0).then(|| rounded(part / whole as f64))
}

/// Why something was not done: a report that was never filled in is one of a feature that was off.
fn reason(applied: bool, reason: Option<&'static str>) -> Option<&'static str> {
    (!applied).then(|| reason.unwrap_or(SkipReason::Disabled.as_str()))
}

/// What SpecPrefill did.
fn specprefill(report: &SpecPrefillReport) -> Value {
    json!({
        "applied": report.applied,
        "reason": reason(report.applied, report.reason.map(SkipReason::as_str)),
        "scorer": report.scorer.map(Scorer::as_str),
        "draft_model": report.draft_model,
        "prompt_tokens": report.prompt_tokens,
        "static_prefix_tokens": report.static_prefix_tokens,
        "static_prefix_reason": report.static_prefix_reason,
        "cached_tokens": report.cached_tokens,
        "scored_tokens": report.scored_tokens,
        "kept_tokens": report.kept_tokens,
        "keep_ratio": rounded(f64::from(report.keep_ratio)),
        "scoring_seconds": seconds(report.scoring),
        "sparse_prefill_seconds": seconds(report.sparse_prefill),
        "session_reused": report.session_reused,
    })
}

/// What MTP did. A cycle gives the accepted drafts and one token more.
fn mtp(report: &MtpReport) -> Value {
    let milliseconds = |time: Duration| share(time.as_secs_f64() * 1e3, report.cycles);
    json!({
        "applied": report.applied,
        "reason": reason(report.applied, report.reason),
        "mode": report.mode.as_str(),
        "cycles": report.cycles,
        "drafted": report.drafted,
        "accepted": report.accepted,
        "acceptance": share(report.accepted as f64, report.drafted),
        "tokens_per_cycle": share((report.accepted + report.cycles) as f64, report.cycles),
        "depth_histogram": report.depth_histogram,
        "parks": report.parks,
        "backbone_ms_per_cycle": milliseconds(report.backbone),
        "head_ms_per_cycle": milliseconds(report.head),
    })
}

/// Counts and times of one reply. Speeds are `null` when there is nothing to divide.
pub(super) fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "time_to_first_token": seconds(usage.time_to_first_token),
        "prompt_eval_duration": seconds(usage.prompt_eval),
        "generation_duration": seconds(usage.generation),
        "total_time": seconds(usage.total),
        "prompt_tokens_per_second": rate(usage.prompt_tokens_per_second()),
        "generation_tokens_per_second": rate(usage.generation_tokens_per_second()),
        "specprefill": specprefill(&usage.specprefill),
        "mtp": mtp(&usage.mtp),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_with_microseconds() {
        let value = usage(&Usage {
            prompt_tokens: 10,
            computed_tokens: 10,
            completion_tokens: 3,
            time_to_first_token: Duration::from_nanos(1_234_567_890),
            prompt_eval: Duration::from_millis(500),
            generation: Duration::from_millis(100),
            total: Duration::from_secs(2),
            ..Usage::default()
        });
        assert_eq!(value["time_to_first_token"], 1.234_567);
        assert_eq!(value["total_tokens"], 13);
        assert_eq!(value["prompt_tokens_per_second"], 20.0);
        assert_eq!(value["generation_tokens_per_second"], 20.0);
        assert_eq!(
            usage(&Usage::default())["generation_tokens_per_second"],
            Value::Null
        );
    }

    #[test]
    fn specprefill_says_what_was_done() {
        let value = usage(&Usage {
            specprefill: SpecPrefillReport {
                applied: true,
                scorer: Some(Scorer::Own),
                prompt_tokens: 9000,
                static_prefix_tokens: 500,
                cached_tokens: 512,
                scored_tokens: 8488,
                kept_tokens: 1698,
                keep_ratio: 0.2,
                scoring: Duration::from_millis(1500),
                sparse_prefill: Duration::from_micros(7),
                session_reused: true,
                ..SpecPrefillReport::default()
            },
            ..Usage::default()
        });
        assert_eq!(
            value["specprefill"],
            json!({
                "applied": true,
                "reason": null,
                "scorer": "self",
                "draft_model": null,
                "prompt_tokens": 9000,
                "static_prefix_tokens": 500,
                "static_prefix_reason": null,
                "cached_tokens": 512,
                "scored_tokens": 8488,
                "kept_tokens": 1698,
                "keep_ratio": 0.2,
                "scoring_seconds": 1.5,
                "sparse_prefill_seconds": 0.000_007,
                "session_reused": true,
            })
        );
        let value = usage(&Usage {
            specprefill: SpecPrefillReport {
                reason: Some(SkipReason::BelowThreshold),
                draft_model: Some("a/b".into()),
                static_prefix_reason: Some("no_template"),
                ..SpecPrefillReport::default()
            },
            ..Usage::default()
        });
        let specprefill = &value["specprefill"];
        assert_eq!(specprefill["reason"], "below_threshold");
        assert_eq!(specprefill["draft_model"], "a/b");
        assert_eq!(specprefill["static_prefix_reason"], "no_template");
    }

    #[test]
    fn mtp_says_what_was_done() {
        let value = usage(&Usage {
            mtp: MtpReport {
                applied: true,
                cycles: 10,
                drafted: 20,
                accepted: 15,
                depth_histogram: vec![2, 4, 4],
                parks: 1,
                backbone: Duration::from_millis(250),
                head: Duration::from_millis(5),
                ..MtpReport::default()
            },
            ..Usage::default()
        });
        assert_eq!(
            value["mtp"],
            json!({
                "applied": true,
                "reason": null,
                "mode": "exact",
                "cycles": 10,
                "drafted": 20,
                "accepted": 15,
                "acceptance": 0.75,
                "tokens_per_cycle": 2.5,
                "depth_histogram": [2, 4, 4],
                "parks": 1,
                "backbone_ms_per_cycle": 25.0,
                "head_ms_per_cycle": 0.5,
            })
        );
    }

    #[test]
    fn what_was_not_done_has_a_reason_and_no_rates() {
        let value = usage(&Usage::default());
        assert_eq!(value["specprefill"]["applied"], false);
        assert_eq!(value["specprefill"]["reason"], "disabled");
        let mtp = &value["mtp"];
        assert_eq!(mtp["reason"], "disabled");
        for rate in [
            "acceptance",
            "tokens_per_cycle",
            "backbone_ms_per_cycle",
            "head_ms_per_cycle",
        ] {
            assert_eq!(mtp.get(rate), Some(&Value::Null), "{rate}");
        }
        let value = usage(&Usage {
            mtp: MtpReport {
                reason: Some("weights_missing"),
                ..MtpReport::default()
            },
            ..Usage::default()
        });
        assert_eq!(value["mtp"]["reason"], "weights_missing");
    }
}
