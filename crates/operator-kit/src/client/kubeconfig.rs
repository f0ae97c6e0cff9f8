//! Kubeconfigs, as kubectl reads them: kube takes some of their texts more literally.

use std::{
    env, fmt, io,
    path::{Path, PathBuf},
};

use kube::config::{Kubeconfig, KubeconfigError};
use serde_json::Value;

use super::ClientError;

/// Reads this kubeconfig.
pub(super) fn read_from(file: &Path) -> Result<Kubeconfig, ClientError> {
    tidy(&Kubeconfig::read_from(file)?)
}

/// Where kubeconfigs are looked for.
pub(super) enum Places {
    /// KUBECONFIG lists these files.
    Listed(Vec<PathBuf>),
    /// `~/.kube/config`, if there is a home directory.
    Usual(Option<PathBuf>),
}

impl Places {
    pub(super) fn of_environment() -> Self {
        let listed = env::var_os("KUBECONFIG").unwrap_or_default();
        let listed: Vec<_> = env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty()).collect();
        if listed.is_empty() {
            Self::Usual(env::home_dir().map(|home| home.join(".kube/config")))
        } else {
            Self::Listed(listed)
        }
    }

    /// Reads the files. Of several files the first that says something counts, and one that does not exist counts as empty.
    pub(super) fn read(&self) -> Result<Kubeconfig, ClientError> {
        let mut merged = Kubeconfig::default();
        for file in self.files() {
            let read = match Kubeconfig::read_from(file) {
                Err(KubeconfigError::ReadConfig(why, _)) if why.kind() == io::ErrorKind::NotFound => continue,
                read => tidy(&read?)?,
            };
            merged = merged.merge(read)?;
        }
        Ok(merged)
    }

    fn files(&self) -> &[PathBuf] {
        match self {
            Self::Listed(files) => files,
            Self::Usual(file) => file.as_slice(),
        }
    }
}

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Usual(None) = self {
            return f.write_str("~/.kube/config (there is no home directory)");
        }
        let files: Vec<_> = self.files().iter().map(|file| file.display().to_string()).collect();
        f.write_str(&files.join(", "))
    }
}

/// The same without empty texts, which mean as much as none (only the name of a context's cluster has to be there), without white space around a token, and without line ends in base64.
fn tidy(kubeconfig: &Kubeconfig) -> Result<Kubeconfig, ClientError> {
    // By its own serialization, because some of the texts are secrets, which kube's types do not show.
    let unreadable = |_| ClientError::Kubeconfig("some of its values cannot be read".to_owned());
    let mut whole = serde_json::to_value(kubeconfig).map_err(unreadable)?;
    tidy_texts(&mut whole);
    for (list, each) in [("clusters", "cluster"), ("contexts", "context"), ("users", "user")] {
        let named = whole.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        named.filter_map(|it| it.get_mut(each)).for_each(tidy_texts);
    }
    for user in whole["users"].as_array().into_iter().flatten() {
        if user["user"]["token"].as_str().is_some_and(|token| token.contains(char::is_control)) {
            let name = user["name"].as_str().unwrap_or_default();
            return Err(ClientError::Kubeconfig(format!(
                "the token of the user {name} has more than one line"
            )));
        }
    }
    serde_json::from_value(whole).map_err(unreadable)
}

/// Tidies the texts that are directly in this object.
fn tidy_texts(object: &mut Value) {
    let Some(members) = object.as_object_mut() else { return };
    members.retain(|name, value| {
        let Value::String(text) = value else { return true };
        if name == "token" {
            *text = text.trim().to_owned();
        } else if name.ends_with("-data") {
            text.retain(|letter| !letter.is_ascii_whitespace());
        }
        name == "cluster" || !text.is_empty()
    });
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn tidied(text: &str) -> Result<Value, ClientError> {
        tidy(&Kubeconfig::from_yaml(text).unwrap()).map(|it| serde_json::to_value(it).unwrap())
    }

    #[test]
    fn texts_that_kubectl_takes_are_taken() {
        let read = tidied(
            "
            apiVersion: v1
            kind: Config
            current-context: ''
            clusters:
            - name: c
              cluster:
                server: https://api.example
                certificate-authority: ''
                certificate-authority-data: |
                  YWJj
                  ZGVm
                proxy-url: ''
                insecure-skip-tls-verify: true
            contexts:
            - name: one
              context: { cluster: c, user: me, namespace: '' }
            - name: by-set-context
              context: { cluster: '', user: '', namespace: dev }
            users:
            - name: me
              user:
                token: \"a.token\\n\"
                client-key-data: ''
                exec: { command: login, args: [''], env: [{ name: A, value: '' }] }
            ",
        )
        .unwrap();
        assert_eq!(
            read["clusters"][0]["cluster"],
            json!({
                "server": "https://api.example", "certificate-authority-data": "YWJjZGVm", "insecure-skip-tls-verify": true,
            })
        );
        assert_eq!(read["contexts"][0]["context"], json!({ "cluster": "c", "user": "me" }));
        assert_eq!(
            read["contexts"][1]["context"]["cluster"], "",
            "it can be read, and only it cannot be used"
        );
        let user = &read["users"][0]["user"];
        assert_eq!((&user["token"], &user["client-key-data"]), (&json!("a.token"), &Value::Null));
        assert_eq!(user["exec"]["args"], json!([""]));
        assert_eq!(user["exec"]["env"][0]["value"], "");
        assert_eq!(read["current-context"], Value::Null);
    }

    #[test]
    fn a_token_that_no_header_can_hold_is_refused_and_not_quoted() {
        let problem =
            tidied("users: [{ name: me, user: { token: \"a-secret\\nb\" } }]").unwrap_err().to_string();
        assert!(problem.contains("the user me") && !problem.contains("secret"), "{problem}");
    }

    #[test]
    fn of_several_files_the_first_that_says_something_counts() {
        let dir = tempfile::tempdir().unwrap();
        let written = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let context = |name: &str, cluster: &str| {
            format!(
                "current-context: {name}\ncontexts: [{{ name: one, context: {{ cluster: {cluster} }} }}]\n"
            )
        };
        let (missing, empty) = (dir.path().join("missing"), written("empty", ""));
        let files = [
            missing.clone(),
            empty.clone(),
            written("first", &context("''", "a")),
            written("second", &context("one", "b")),
        ];
        let read = Places::Listed(files.into()).read().unwrap();
        assert_eq!(read.current_context.as_deref(), Some("one"));
        assert_eq!(read.contexts.len(), 1);
        assert_eq!(read.contexts[0].context.as_ref().unwrap().cluster, "a");
        assert!(Places::Listed(vec![missing.clone(), empty]).read().unwrap().contexts.is_empty());
        assert!(Places::Usual(None).read().unwrap().contexts.is_empty());
        assert!(Places::Listed(vec![written("broken", "clusters: 5")]).read().is_err());
        assert!(read_from(&missing).is_err());
    }
}
