"""Differential privacy: clipping, the Gaussian mechanism, accounting, the ledger and audits.

The functions work on tensors and numbers, independent of clients and rounds. Typical use: `clip` bounds a message,
`gaussian_noise` protects it, `Ledger.book` records the release, `Ledger.report` accounts for all releases, and
the functions of `privacy.audit` test the claim on released data, those of `privacy.one_run` bound it from below.

Import names from their modules: `privacy.accounting`, `privacy.gaussian`, `privacy.clipping` and so on. Those that
account need no torch, and what reads results does not have it.

========================  ==============================================================================
`classic_sigma`           nominal calibration by the classical formula (as the papers print it)
`analytic_sigma`          exact calibration of one release
`gaussian_epsilon`        exact epsilon of one release (`gaussian_delta`: exact delta)
`calibrate`               calibration of any mixture of events to one budget
`epsilon`                 privacy of many equal releases (`account`: of any mixture of events)
`Ledger`                  record of releases, counted for each unit
`calibrate_all`           calibration for many units with different histories (`calibrate_each`: for each its own)
`clip`, `clip_each`       joint clip of a message; clip of each part (`joint_norm`: its total bound)
`clipped_sum`             sum of individually clipped rows, for per-sample gradients
`scale_to_norm`           gradient clipping without a guarantee for privacy
`AdaptiveClip`            clip norm that follows a quantile
`gaussian_noise`          noise, one generator per row
`coefficients`            noise that is correlated between rounds
`grid`                    noise that clients add together, as integers (`discrete_gaussian`, `rotate`)
`scale_p`, `inclusion_p`  tests of the claimed noise and sampling (`normal_p`, `correlation_p`: of draws)
`one_run_epsilon`         empirical lower bound on epsilon (`one_run_gaussian_epsilon`, `clopper_pearson_epsilon`)
`selection_epsilon`       what a search for settings costs, if it draws a random number of them
`attack_bound`            what an attacker can gain (`accuracy_bound`: from one epsilon alone)
========================  ==============================================================================
"""
