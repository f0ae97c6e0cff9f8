//! The page of the command line, from clap's definitions.

use std::fmt::Write as _;

use anyhow::Result;
use clap::{Arg, Command, CommandFactory as _};
use peerpod_operator::cli::Cli;

use super::{code, table};

pub(super) fn page() -> Result<String> {
    let mut program = Cli::command();
    program.build();
    let mut page = "# Command line

Each flag is also an environment variable, except those of `status` that kubectl has, too. A flag takes precedence over its variable.
"
    .to_owned();
    for command in program.get_subcommands().filter(|command| command.get_name() != "help") {
        write!(page, "\n## {}\n\n", command.get_name())?;
        let about = command.get_long_about().or(command.get_about());
        writeln!(page, "{}\n", about.map(ToString::to_string).unwrap_or_default())?;
        page.push_str(&flags(command));
        if let Some(help) = command.get_after_help() {
            write!(page, "\n```text\n{help}\n```\n")?;
        }
    }
    Ok(page)
}

fn flags(command: &Command) -> String {
    let flags = command.get_arguments().filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()));
    let rows = flags.map(|arg| {
        let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        [code(&usage(arg)), code(&variable), code(&default(arg)), meaning(arg)]
    });
    table(["flag", "environment variable", "default", "meaning"], rows)
}

/// The flag with the name of its value.
fn usage(arg: &Arg) -> String {
    let takes_value = arg.get_num_args().is_some_and(|number| number.takes_values());
    let names = arg.get_value_names().filter(|_| takes_value).into_iter().flatten();
    let short = arg.get_short().map(|short| format!("-{short},"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    short.into_iter().chain(long).chain(names.map(ToString::to_string)).collect::<Vec<_>>().join(" ")
}

fn default(arg: &Arg) -> String {
    if arg.is_hide_default_value_set() || !arg.get_num_args().is_some_and(|number| number.takes_values()) {
        return String::new();
    }
    let values = arg.get_default_values().iter().map(|value| value.to_string_lossy());
    values.collect::<Vec<_>>().join(",")
}

fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let values = arg.get_possible_values();
    let explained = values.iter().filter_map(|value| {
        let help = value.get_help()?;
        Some(format!("`{}`: {help}", value.get_name()))
    });
    let explained: Vec<_> = explained.collect();
    if explained.is_empty() { help } else { format!("{help}. {}", explained.join("; ")) }
}
