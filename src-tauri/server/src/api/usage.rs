//! The `usage` object: OpenAI's fields and the measured times.

use std::time::Duration;

use headstart_engine::request::Usage;
use serde_json::{Value, json};

/// Seconds with microsecond precision.
fn seconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e6
}

fn rate(rate: Option<f64>) -> Option<f64> {
    rate.map(|rate| (rate * 1e3).round() / 1e3)
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
}
