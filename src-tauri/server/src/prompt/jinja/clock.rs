//! `strftime_now`: Python's `datetime.now().strftime(format)` in the C locale.

use chrono::{Datelike, NaiveDateTime, Timelike};

/// A field before padding: its digits or letters, its usual width and the character that fills it.
struct Field {
    text: String,
    width: usize,
    fill: char,
}

fn padded(n: impl Into<i64>, width: usize, fill: char) -> Field {
    Field {
        text: n.into().to_string(),
        width,
        fill,
    }
}

fn plain(text: impl Into<String>) -> Field {
    Field {
        text: text.into(),
        width: 0,
        fill: ' ',
    }
}

/// Formats a time. Besides the standard directives, those of glibc and macOS and the flags `-` (no padding), `_` (spaces),
/// `0` (zeros), `^` (upper case) and `#` (swapped case) are known; an unknown directive stays as it is.
pub(super) fn strftime(time: &NaiveDateTime, format: &str) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let directive = &rest[at..];
        let flags_len = directive[1..]
            .bytes()
            .take_while(|b| b"-_0^#".contains(b))
            .count();
        let flags = &directive[1..1 + flags_len];
        let after_flags = &directive[1 + flags_len..];
        // Alternative representations (`%Ey`, `%Od`) are the same in the C locale.
        let after_flags = after_flags.strip_prefix(['E', 'O']).unwrap_or(after_flags);
        let Some(code) = after_flags.chars().next() else {
            out.push_str(directive);
            return out;
        };
        rest = &after_flags[code.len_utf8()..];
        match field(time, code) {
            Some(field) => write(&mut out, field, flags, code),
            None => out.push_str(&directive[..directive.len() - rest.len()]),
        }
    }
    out.push_str(rest);
    out
}

fn write(out: &mut String, field: Field, flags: &str, code: char) {
    let Field {
        mut text,
        mut width,
        mut fill,
    } = field;
    for flag in flags.chars() {
        match flag {
            '-' => width = 0,
            '_' => fill = ' ',
            '0' => fill = '0',
            '^' => text = text.to_uppercase(),
            // Where upper case is usual, swapped is lower; else upper.
            _ if matches!(code, 'p' | 'Z') => text = text.to_lowercase(),
            _ => text = text.to_uppercase(),
        }
    }
    out.extend(std::iter::repeat_n(fill, width.saturating_sub(text.len())));
    out.push_str(&text);
}

fn field(time: &NaiveDateTime, code: char) -> Option<Field> {
    let twelve_hour = time.hour12().1;
    let weekday = i64::from(time.weekday().num_days_from_sunday());
    let day_of_year = i64::from(time.ordinal0());
    Some(match code {
        'a' => plain(time.weekday().to_string()),
        'A' => plain(time.format("%A").to_string()),
        'b' | 'h' => plain(time.format("%b").to_string()),
        'B' => plain(time.format("%B").to_string()),
        'c' => plain(strftime(time, "%a %b %e %H:%M:%S %Y")),
        'C' => padded(time.year().div_euclid(100), 2, '0'),
        'd' => padded(time.day(), 2, '0'),
        'D' | 'x' => plain(strftime(time, "%m/%d/%y")),
        'e' => padded(time.day(), 2, ' '),
        'f' => padded(time.and_utc().timestamp_subsec_micros(), 6, '0'),
        'F' => plain(strftime(time, "%Y-%m-%d")),
        'g' => padded(time.iso_week().year().rem_euclid(100), 2, '0'),
        'G' => padded(time.iso_week().year(), 4, '0'),
        'H' => padded(time.hour(), 2, '0'),
        'I' => padded(twelve_hour, 2, '0'),
        'j' => padded(day_of_year + 1, 3, '0'),
        'k' => padded(time.hour(), 2, ' '),
        'l' => padded(twelve_hour, 2, ' '),
        'm' => padded(time.month(), 2, '0'),
        'M' => padded(time.minute(), 2, '0'),
        'n' => plain("\n"),
        'p' => plain(if time.hour() < 12 { "AM" } else { "PM" }),
        'P' => plain(if time.hour() < 12 { "am" } else { "pm" }),
        'r' => plain(strftime(time, "%I:%M:%S %p")),
        'R' => plain(strftime(time, "%H:%M")),
        's' => {
            let local = time.and_local_timezone(chrono::Local).earliest();
            padded(
                local.map_or_else(|| time.and_utc().timestamp(), |local| local.timestamp()),
                0,
                '0',
            )
        }
        'S' => padded(time.second(), 2, '0'),
        't' => plain("\t"),
        'T' | 'X' => plain(strftime(time, "%H:%M:%S")),
        'u' => padded(if weekday == 0 { 7 } else { weekday }, 1, '0'),
        'U' => padded((day_of_year + 7 - weekday) / 7, 2, '0'),
        'V' => padded(time.iso_week().week(), 2, '0'),
        'w' => padded(weekday, 1, '0'),
        'W' => padded((day_of_year + 7 - (weekday + 6) % 7) / 7, 2, '0'),
        'y' => padded(time.year().rem_euclid(100), 2, '0'),
        'Y' => padded(time.year(), 4, '0'),
        // `datetime.now()` knows no time zone.
        'z' | 'Z' => plain(""),
        '%' => plain("%"),
        _ => return None,
    })
}
