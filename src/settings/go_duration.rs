//! Durations as Go writes them.

use std::time::Duration;

/// Reads a duration such as `1h30m` or `1.5s`. `None` if it is none, or not longer than zero.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let (mut seconds, mut rest) = (0.0, text);
    while !rest.is_empty() {
        let is_of_number = |it: char| it.is_ascii_digit() || it == '.';
        let (number, after) = rest.split_at(rest.find(|it: char| !is_of_number(it))?);
        let (unit, next) = after.split_at(after.find(is_of_number).unwrap_or(after.len()));
        let unit = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * unit;
        rest = next;
    }
    Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_read_as_go_reads_it() {
        let milliseconds = |text: &str| parse(text).map(|it| it.as_millis());
        for (text, expected) in [
            ("5m", 300_000),
            ("1m30s", 90_000),
            ("1.5s", 1_500),
            ("2s100ms", 2_100),
            ("500ms500000\u{b5}s", 1_000),
            (".1h", 360_000),
        ] {
            assert_eq!(milliseconds(text), Some(expected), "{text}");
        }
        let long = "9".repeat(400);
        for no in
            ["", "0", "0s", "-1s", "60", "1.1.1s", "s", "30 s", "1d", "soon", &long, &format!("{long}h")]
        {
            assert_eq!(milliseconds(no), None, "{no}");
        }
    }
}
