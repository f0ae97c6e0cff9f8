//! `completions` and `man`: completion scripts and manual pages.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use super::{Cli, terminal};

/// Which shell.
#[derive(Clone, Copy, Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Where the pages go.
#[derive(Clone, Debug, Args)]
pub struct ManArgs {
    /// The folder that the pages are written to, such as /usr/local/share/man/man1
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// The script that completes this program's command line in a shell.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    let mut command = Cli::command();
    let name = command.get_name().to_owned();
    generate(shell, &mut command, name, &mut script);
    script
}

/// Writes the manual's pages into this folder: one for the program, and one for each command.
pub fn man_pages(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Cli::command(), folder)
}

pub(super) fn print(args: CompletionsArgs) -> ExitCode {
    let written = io::stdout().write_all(&completions(args.shell));
    ended("completions", terminal::reported(written).map(drop))
}

pub(super) fn write(args: &ManArgs) -> ExitCode {
    let folder = args.folder.display();
    let written = man_pages(&args.folder);
    ended("man", written.map_err(|problem| format!("writing the pages to {folder} failed: {problem}")))
}

fn ended(command: &str, outcome: Result<(), String>) -> ExitCode {
    let Err(problem) = outcome else { return ExitCode::SUCCESS };
    terminal::problem(command, &problem);
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_learns_every_command() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(completions(*shell)).unwrap();
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }

    #[test]
    fn every_command_has_a_page_with_its_flags() {
        let folder = tempfile::tempdir().unwrap();
        man_pages(folder.path()).unwrap();
        for command in Cli::command().get_subcommands() {
            let name = format!("peerpod-operator-{}.1", command.get_name());
            let page = fs::read_to_string(folder.path().join(&name)).unwrap().replace("\\-", "-");
            for flag in command.get_arguments().filter_map(|it| it.get_long()) {
                assert!(page.contains(&format!("--{flag}")), "{name}: {flag}");
            }
        }
    }
}
