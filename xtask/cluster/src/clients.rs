//! Runs of kubectl and helm, of which tests make thousands.

use std::process::Command;

/// Makes a command that runs kubectl or helm take less processor time.
pub fn quick(command: &mut Command) -> &mut Command {
    command
        // They end before garbage matters, and collecting it is a third of their work.
        .env("GOGC", "off")
        // More threads spend more on waking each other than they gain.
        .env("GOMAXPROCS", "1")
        // They unpack all texts of kubectl in the language at their start. This translation is the shortest, and errors have none.
        .env("LC_ALL", "zh_TW.UTF-8")
}
