//! The programs with admin endpoints, in the words of messages.

/// Which program answers at an admin address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// `podwright run`.
    Agent,
    /// `podwright controllers`.
    Controllers,
}

impl Program {
    /// The answer to a request from a page of another site.
    pub(crate) const fn refusal_of_other_site(self) -> &'static str {
        match self {
            Program::Agent => "requests from pages of other sites are refused: open the page at / of this agent\n",
            Program::Controllers => {
                "requests from pages of other sites are refused: use a program that is no browser\n"
            }
        }
    }

    /// The answer to a request with a wrong token.
    pub(crate) const fn refusal_of_wrong_token(self) -> &'static str {
        match self {
            Program::Agent => {
                "the token is not the one of this agent, which makes a new one at each start: open the link that \
                 `podwright link` prints\n"
            }
            Program::Controllers => {
                "the token is not the one of these controllers, which make a new one at each start: use \
                 `podwright explain` with their --root\n"
            }
        }
    }

    /// The answer to a request without a token.
    pub(crate) const fn refusal_without_token(self) -> &'static str {
        match self {
            Program::Agent => {
                "this path needs a token: open the link that `podwright link` prints, or give commands such as `podwright get` \
                 the agent's directory with --root DIR, or a file with the token with --admin-token-file FILE\n"
            }
            Program::Controllers => {
                "this path needs a token: give `podwright explain` the directory of the controllers with --root DIR, or a file with \
                 the token with --admin-token-file FILE\n"
            }
        }
    }

    /// What goes on while the program cannot listen.
    pub(crate) const fn without_listener(self) -> &'static str {
        match self {
            Program::Agent => "pods keep running, and the agent tries again",
            Program::Controllers => "the controllers keep working, and try again",
        }
    }
}
