//! Why the credentials of a kubeconfig cannot be used.

use kube::{client::AuthError, config::ExecConfig};

use crate::{api_call, text::non_empty};

/// Why a client with these credentials cannot be made. It names the exec plugin if that cannot be started: perhaps it is not installed.
pub(super) fn refused(error: &kube::Error, plugin: Option<&ExecConfig>) -> String {
    let (kube::Error::Auth(AuthError::AuthExecStart(why)), Some(plugin)) = (error, plugin) else {
        return api_call::text(error);
    };
    let command = plugin.command.as_deref().unwrap_or_default();
    let hint = non_empty(plugin.install_hint.as_deref().map(str::trim));
    let hint = hint.map(|hint| format!("; the kubeconfig says: {hint}")).unwrap_or_default();
    format!("the kubeconfig's exec plugin {command} cannot be started: {why}{hint}")
}

#[cfg(test)]
mod tests {
    use std::{io, process::Command};

    use super::*;

    /// A plugin that fails, and says why by this script.
    fn failed(why: &str) -> AuthError {
        let mut plugin = Command::new("sh");
        plugin.args(["-c", &format!("echo a-secret; {why}; exit 3"), "--password=a-secret"]);
        plugin.env("CLIENT_SECRET", "a-secret");
        let out = plugin.output().unwrap();
        AuthError::AuthExecRun { cmd: format!("{plugin:?}"), out: Box::new(out) }
    }

    #[test]
    fn a_plugins_command_and_standard_output_are_not_repeated() {
        let expected = "the kubeconfig's exec plugin failed (exit status: 3): expired";
        // The first is at the start, the second when the credentials are renewed.
        let failed = || failed("echo expired >&2");
        for error in [kube::Error::Auth(failed()), kube::Error::Service(failed().into())] {
            assert!(error.to_string().contains("a-secret"), "kube quotes it: {error}");
            assert_eq!(api_call::text(&error), expected);
        }
    }

    #[test]
    fn a_plugin_that_wrote_to_the_terminal_itself_leaves_a_hint() {
        let text = api_call::text(&kube::Error::Auth(failed("true")));
        assert!(text.ends_with("(exit status: 3): it may have said why on standard error"), "{text}");
    }

    #[test]
    fn a_plugin_that_is_not_installed_is_named_without_its_arguments() {
        let plugin = serde_json::from_value(serde_json::json!({
            "command": "a-login", "args": ["--password=a-secret"], "installHint": "install a-login\n",
        }))
        .unwrap();
        let missing = AuthError::AuthExecStart(io::ErrorKind::NotFound.into());
        assert_eq!(
            refused(&kube::Error::Auth(missing), Some(&plugin)),
            "the kubeconfig's exec plugin a-login cannot be started: entity not found; the kubeconfig says: install a-login"
        );
        let expired = refused(&kube::Error::Auth(failed("echo expired >&2")), Some(&plugin));
        assert!(expired.ends_with("(exit status: 3): expired"), "{expired}");
    }
}
