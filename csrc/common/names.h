// What the lists of rules, maps and row functions are expanded with: to the enumerators of an enum, and to their names.
#pragma once

#define FWP_ENUMERATOR(name) name,
#define FWP_NAME(name) #name,
