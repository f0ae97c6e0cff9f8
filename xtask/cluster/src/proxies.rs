//! The proxies of the environment. Builds may need them. The programs of a cluster and its clients reach this machine alone.

use std::process::Command;

/// The variables that name proxies.
const VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];

/// Makes a command use no proxy.
pub fn without_proxies(command: &mut Command) -> &mut Command {
    for name in VARIABLES {
        command.env_remove(name);
    }
    command
}
